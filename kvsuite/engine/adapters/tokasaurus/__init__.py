"""tokasaurus behind the contract: `TokasaurusEngine`."""

from kvsuite.engine.adapters.tokasaurus.engine import TokasaurusEngine as TokasaurusEngine
