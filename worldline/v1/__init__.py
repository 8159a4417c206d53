"""Generated from protos/: do not edit, run `make proto`."""
