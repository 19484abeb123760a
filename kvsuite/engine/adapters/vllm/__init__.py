"""vLLM's own block manager, coordinator and block pool behind the engine contract."""

from kvsuite.engine.adapters.vllm.engine import VllmEngine as VllmEngine
from kvsuite.engine.adapters.vllm.scheduled import VllmSchedulerEngine as VllmSchedulerEngine
from kvsuite.engine.adapters.vllm.variants import VllmLookaheadEngine as VllmLookaheadEngine
from kvsuite.engine.adapters.vllm.variants import VllmWindowEngine as VllmWindowEngine
