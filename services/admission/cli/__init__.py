"""Subcommands of `worldline` that ask the rules without a move: which fabrics would do, and where sessions stand."""
