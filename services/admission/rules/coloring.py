"""Edge coloring of a multigraph: transfers of one color share no node, so that they can run side by side (paper §6.5).

At most D + m colors for a largest degree D and m parallel edges at most (Vizing). An edge between two nodes is a
transfer; an edge from a node to itself meets the other edges of that node like any other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)

Edge = tuple[int, int]


def bound(edges: Sequence[tuple[Node, Node]]) -> int:
    """The largest degree plus the largest number of parallel edges: what `color` never exceeds."""
    degrees: Counter[Node] = Counter()
    parallel: Counter[frozenset[Node]] = Counter()
    for edge in edges:
        degrees.update(set(edge))
        if edge[0] != edge[1]:
            parallel[frozenset(edge)] += 1
    return max(degrees.values(), default=0) + max(parallel.values(), default=1 if edges else 0)


def color(edges: Sequence[tuple[Node, Node]]) -> list[int]:
    """A color from 0 on for each edge; edges that share a node have different ones."""
    numbers: dict[Node | tuple[Node, int], int] = {}

    def number(node: Node | tuple[Node, int]) -> int:
        return numbers.setdefault(node, len(numbers))

    # An edge of one node gets a second one of its own, so that the graph has no loops.
    plain = [
        (number(one), number((one, index)) if one == other else number(other))
        for index, (one, other) in enumerate(edges)
    ]
    coloring = _Coloring(plain)
    for index in range(len(plain)):
        coloring.add(index)
    return coloring.colors


class _Coloring:
    """Colors edges one after another. A new color is begun only where no fan can make room for an edge."""

    def __init__(self, edges: list[Edge]) -> None:
        self._edges = edges
        self.colors = [-1] * len(edges)
        # Node -> color -> the edge of that color there.
        self._at: dict[int, dict[int, int]] = defaultdict(dict)
        degrees = Counter(node for edge in edges for node in edge)
        self._palette = max(degrees.values(), default=0)

    def add(self, index: int) -> None:
        """Color one more edge."""
        while not self._extend(index):
            self._palette += 1

    def _extend(self, index: int) -> bool:
        """Color an edge with the present palette, recoloring a fan at one of its nodes if need be."""
        center, _ = self._edges[index]
        # The fan: edges at the center, each in a color that an earlier one's far node lacks; `parent` is that edge.
        fan, parent = [index], {index: -1}
        lacking: dict[int, int] = {}  # color -> the first edge of the fan whose far node lacks it
        at = 0
        while at < len(fan):
            edge = fan[at]
            far = self._far(edge, center)
            for free in self._free(far):
                if free not in self._at[center]:
                    self._shift(edge, center, free, parent)
                    return True
                known = lacking.setdefault(free, edge)
                if self._far(known, center) != far:
                    self._meet(known, edge, center, free, parent)
                    return True
                next_edge = self._at[center][free]
                if next_edge not in parent:
                    parent[next_edge] = edge
                    fan.append(next_edge)
            at += 1
        return False

    def _meet(self, earlier: int, later: int, center: int, shared: int, parent: dict[int, int]) -> None:
        """Two far nodes lack `shared`: a chain that misses the center is turned, so that one of them can be shifted."""
        free = self._free(center)[0]
        # The center ends its own chain of both colors, so that at most one of the two far nodes is on it.
        edge = earlier if self._end(self._far(earlier, center), free, shared) != center else later
        self._turn(self._far(edge, center), free, shared)
        self._shift(edge, center, free, parent)

    def _shift(self, edge: int, center: int, free: int, parent: dict[int, int]) -> None:
        """Give `edge` the color that both its nodes lack, its parent the one that this sets free, and so on."""
        while edge >= 0:
            before = self.colors[edge]
            self._paint(edge, free)
            edge, free = parent[edge], before

    def _turn(self, node: int, one: int, other: int) -> None:
        """Swap both colors on the chain that begins at `node`."""
        chain = self._chain(node, one, other)
        swapped = [(edge, other if self.colors[edge] == one else one) for edge in chain]
        for edge in chain:
            self._clear(edge)
        for edge, new in swapped:
            self._paint(edge, new)

    def _end(self, node: int, one: int, other: int) -> int:
        """The far end of the chain of both colors that begins at `node`."""
        for edge in self._chain(node, one, other):
            node = self._far(edge, node)
        return node

    def _chain(self, node: int, one: int, other: int) -> list[int]:
        """The edges of the chain of both colors that begins at `node`, which lacks one of them."""
        chain: list[int] = []
        wanted = one if one in self._at[node] else other
        while wanted in self._at[node]:
            edge = self._at[node][wanted]
            chain.append(edge)
            node, wanted = self._far(edge, node), one + other - wanted
        return chain

    def _free(self, node: int) -> list[int]:
        used = self._at[node]
        return [color for color in range(self._palette) if color not in used]

    def _far(self, edge: int, node: int) -> int:
        one, other = self._edges[edge]
        return other if node == one else one

    def _clear(self, edge: int) -> None:
        if self.colors[edge] >= 0:
            for node in self._edges[edge]:
                self._at[node].pop(self.colors[edge], None)
            self.colors[edge] = -1

    def _paint(self, edge: int, new: int) -> None:
        self._clear(edge)
        for node in self._edges[edge]:
            self._at[node][new] = edge
        self.colors[edge] = new
