"""Builds the wheel and tries it in an empty environment: no engine, no framework, and still a clear answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"pinfold", "langchain_pinfold", "llama_index"}
TYPED = {"pinfold/py.typed", "langchain_pinfold/py.typed", "llama_index/llms/pinfold/py.typed"}
NAMESPACES = {"llama_index/__init__.py", "llama_index/llms/__init__.py"}
IMPORT_LIMIT_S = 0.5  # of CPU time, which other work on the machine does not stretch

IMPORT = f"""
import sys, time
start = time.process_time()
import pinfold
took = time.process_time() - start
heavy = {{"llama_cpp", "llguidance", "langchain_core", "llama_index", "huggingface_hub", "typer"}} & set(sys.modules)
if heavy or took > {IMPORT_LIMIT_S}:
    sys.exit(f"import pinfold took {{took:.2f}} s of CPU time and imported {{sorted(heavy)}}")
print(f"import pinfold: {{took:.2f}} s of CPU time")
"""


def main() -> None:
    """Exits with a message at the first thing that is not as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = _build(Path(folder))
        _look_inside(wheel)
        _try(wheel, Path(folder) / "venv")
    print(f"{wheel.name}: builds, installs and runs in an empty environment")


def _build(folder: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def _look_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    if top != TOP_LEVEL or not names >= TYPED or names & NAMESPACES:
        sys.exit(f"the wheel holds {sorted(top)}, lacks {sorted(TYPED - names)}, has {sorted(names & NAMESPACES)}")


def _try(wheel: Path, environment: Path) -> None:
    venv.create(environment, with_pip=True)
    python, command = environment / "bin" / "python", environment / "bin" / "pinfold"
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    _run(python, "-c", "import pinfold")  # compiles, so that the next import is timed as every later one is
    print(_run(python, "-c", IMPORT).strip())
    _run(command, "--version")
    _expect_install_hint(_run(command, "doctor", code=1), "pinfold[llama-cpp]")
    _expect_install_hint(_run(command, "chat", "smollm2", "--once", "Hi", code=1), "pinfold[embedded]")


def _run(*command: object, code: int = 0) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}, not {code}:\n{output}")
    return output


def _expect_install_hint(output: str, extra: str) -> None:
    if extra not in "".join(output.split()) or "Traceback" in output:
        sys.exit(f"no clear word on how to install {extra}:\n{output}")


if __name__ == "__main__":
    main()
