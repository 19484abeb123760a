"""Exports the tiny Llama that the OpenVINO adapter serves: ``python export.py FOLDER NAME=NUMBER...``.

Runs in the interpreter of a tool environment that has torch, transformers, optimum-intel and the OpenVINO of
the minor version it exports for; kvsuite is not there. Weights are random with a fixed seed: only shapes
matter. The numbers are the model's configuration under the names of transformers.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any


def export(folder: Path, shape: dict[str, int]) -> None:
    """Write the model's graph, weights and tokenizer to ``folder``, which must not exist."""
    with tempfile.TemporaryDirectory() as scratch:
        _save(Path(scratch), shape)
        exporter: Any = importlib.import_module("optimum.exporters.openvino")
        exporter.main_export(scratch, folder, task="text-generation-with-past", convert_tokenizer=True)


def _save(folder: Path, shape: dict[str, int]) -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(folder)
    tokenizer, names = _bytes_tokenizer()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=names[0], eos_token=names[1]
    )
    wrapped.save_pretrained(folder)


def _bytes_tokenizer() -> tuple[Any, list[str]]:
    """Return a tokenizer of one token a byte, and its names; requests come as ids, but one must be there."""
    tokenizers: Any = importlib.import_module("tokenizers")
    names = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer, names


if __name__ == "__main__":
    pairs = (argument.split("=") for argument in sys.argv[2:])
    export(Path(sys.argv[1]), {name: int(value) for name, value in pairs})
