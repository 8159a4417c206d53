#!/usr/bin/env bash
# The two routes that a link which went down and came up again has lost.
set -euo pipefail
ip route replace 10.78.0.2/32 dev va src 10.78.0.1 table 101
ip route replace 10.78.0.1/32 dev vb src 10.78.0.2 table 102
