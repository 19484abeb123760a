"""LMDeploy's PyTorch engine behind the contract: `LmdeployEngine`."""

from kvsuite.engine.adapters.lmdeploy.engine import LmdeployEngine as LmdeployEngine
