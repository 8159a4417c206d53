"""What authors of engines and transports test theirs with: conformance suites, the fault proxy, clock and leak checks.

Import the module you need; only `worldline.testing.engines` and `worldline.testing.trees` import torch.
"""

from __future__ import annotations
