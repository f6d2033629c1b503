"""ftis-node: a peer-to-peer node for F-TIS post-training with heterogeneous models."""

__version__ = "0.1.0"
