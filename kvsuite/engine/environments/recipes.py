"""The engines that can be installed apart, as a table.

Loader kinds. ``full``: the engine's modules are imported as its makers ship them, with what they require.
``filtered``: only its Python files are there, and the adapter imports those that manage the cache and puts
inert modules in place of the rest. ``layer``: no engine; environments that name it see its packages.
``tool``: no engine either, but what makes files that an engine needs.
"""

from __future__ import annotations

import re

from kvsuite.engine.environments.recipe import Loader, LoaderKind, Recipe, Sources
from kvsuite.errors import EngineError

NEWEST = "newest"
TORCH = ("torch-cpu", "2.13.0")
"""The layer of engines with tensors: a CPU build, whatever they pin, since no kernel of theirs runs."""

_VLLM_SHA256 = {
    "0.23.0": "760269db3d9611e12e524681df1bca0977d5d2f5fcb4481cc34d33efc4ae7ff5",
    "0.24.0": "0862453adc1f3339f1a0c9dca1179c34d6ed6e118f87b6e5bddd120af614ac66",
    "0.27.1": "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646",
    "0.28.0": "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}
_VLLM_SOURCES = Sources("sdist", ("vllm",), sha256=_VLLM_SHA256)

# `import vllm.v1.request` reaches structured output, and through it these. vLLM requires CUDA libraries,
# compilers and media codecs too; they are left out.
_VLLM_IMPORTED = (
    *("aiohttp", "blake3", "cachetools", "cbor2", "cloudpickle", "diskcache", "einops", "fastapi", "gguf"),
    *("jsonschema", "lark", "llguidance", "msgspec", "numpy", "openai", "openai-harmony", "orjson"),
    *(
        "oss-harmony",
        "partial-json-parser",
        "pillow",
        "prometheus-client",
        "protobuf",
        "psutil",
        "py-cpuinfo",
    ),
    *("pybase64", "pydantic", "python-json-logger", "pyyaml", "pyzmq", "regex", "requests", "safetensors"),
    *("setproctitle", "starlette", "tiktoken", "tokenizers", "tqdm", "transformers", "typing-extensions"),
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "torch-cpu",
            "torch",
            {"layer": Loader(1, requirements=("torch=={version}", "numpy"))},
            "CPU build of torch, with NumPy; shared by the engines below",
        ),
        Recipe(
            "vllm",
            "vllm",
            {
                "filtered": Loader(
                    1,
                    sources=_VLLM_SOURCES,
                    requirements=("msgspec", "numpy", "packaging", "typing_extensions"),
                ),
                "full": Loader(
                    1,
                    sources=_VLLM_SOURCES,
                    requirements=("packaging", "urllib3", "uvloop"),
                    declared=_VLLM_IMPORTED,
                    declared_alone=("apache-tvm-ffi", "xgrammar"),
                    layer=TORCH,
                ),
            },
            "official sdist, Python files alone; filtered needs no torch",
        ),
        Recipe(
            "transformers",
            "transformers",
            {"full": Loader(1, requirements=("transformers=={version}", "psutil"), layer=TORCH)},
            "official wheel with what it requires",
        ),
        Recipe(
            "sglang",
            "sglang",
            {
                "filtered": Loader(
                    1,
                    sources=Sources("wheel", ("sglang",)),
                    requirements=("msgspec", "packaging", "psutil", "pydantic", "requests", "tqdm"),
                    layer=TORCH,
                )
            },
            "official wheel, Python files alone",
        ),
        Recipe(
            "lmdeploy",
            "lmdeploy",
            {
                "filtered": Loader(
                    1,
                    sources=Sources("wheel", ("lmdeploy",)),
                    requirements=(
                        *("addict", "mmengine-lite", "pillow", "platformdirs", "psutil", "pybase64"),
                        *("requests", "termcolor", "yapf"),
                    ),
                    declared=("transformers",),
                    layer=TORCH,
                )
            },
            "official wheel, Python files alone",
        ),
        Recipe(
            "tokasaurus",
            "tokasaurus",
            {
                "filtered": Loader(
                    1,
                    sources=Sources("wheel", ("tokasaurus",)),
                    requirements=("numpy",),
                )
            },
            "official wheel, Python files alone; needs no torch",
        ),
        Recipe(
            "openvino",
            "openvino-genai",
            {"full": Loader(1, requirements=("openvino-genai=={version}", "numpy"))},
            "official wheels; needs no torch",
        ),
        Recipe(
            "openvino-export",
            "openvino-tokenizers",
            {
                "tool": Loader(
                    1,
                    requirements=(
                        *("openvino-tokenizers=={version}", "transformers==5.3.0", "numpy"),
                        *("psutil", "requests", "scipy", "tabulate"),
                    ),
                    # They require torchvision and compilers, which an export of text does not use.
                    alone=("optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0"),
                    layer=TORCH,
                )
            },
            "exports the tiny model that openvino serves",
        ),
    )
}


def recipe_of(name: str) -> Recipe:
    """Return the recipe of an engine.

    **Raises:** `EngineError` for a name without one.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise EngineError(f"no recipe for an environment of {name!r}: known are {', '.join(sorted(RECIPES))}")
    return recipe


def loader_of(recipe: Recipe, loader: str | None) -> tuple[LoaderKind, Loader]:
    """Return the named loader of a recipe, or its first.

    **Raises:** `EngineError` for a loader that the recipe does not have.
    """
    for kind, found in recipe.loaders.items():
        if loader is None or kind == loader:
            return kind, found
    raise EngineError(f"{recipe.name} has no loader {loader!r}: it has {', '.join(recipe.loaders)}")


def engine_names() -> tuple[str, ...]:
    """Return the names of all recipes of engines, sorted: not of layers and tools."""
    return tuple(
        sorted(name for name, recipe in RECIPES.items() if not {"layer", "tool"} & set(recipe.loaders))
    )


def check_version(name: str, version: str) -> str:
    """Return ``version`` where it can be one.

    **Raises:** `EngineError` for what cannot be a version number, and so not part of a folder's name.
    """
    if not re.fullmatch(r"\d[0-9A-Za-z.!+_-]*", version):
        raise EngineError(f"{name}@{version}: {version!r} is no version; write one like 1.2.0, or {NEWEST}")
    return version
