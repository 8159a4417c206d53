"""Transport "rdma": one-sided writes of reliable queue pairs, straight from the source's region into the slot.

verbs -> device -> regions, queue_pair -> exchange, control, link -> sender, receiver -> transport. Only `verbs` imports
pyverbs, so everything but this package works where it is not installed.
"""
