"""OpenVINO GenAI behind the contract: `OpenvinoEngine`."""

from kvsuite.engine.adapters.openvino.engine import OpenvinoEngine as OpenvinoEngine
from kvsuite.engine.adapters.openvino.model import prepare as prepare
