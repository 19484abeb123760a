"""SGLang behind the contract: `SglangEngine`."""

from kvsuite.engine.adapters.sglang.engine import SglangEngine as SglangEngine
