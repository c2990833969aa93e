import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_importing_paceline_and_its_train_loads_no_torch() -> None:
    code = "import paceline, sys; paceline.train; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert run(code) == "False False"


def test_public_subpackages_are_reached_from_the_package_and_unknown_names_are_refused() -> None:
    assert run("import paceline; print(paceline.algo.__name__, paceline.tasks.__name__, paceline.rewards.__name__)") == (
        "paceline.algo paceline.tasks paceline.rewards"
    )
    assert run("import paceline; print(hasattr(paceline, 'nothing'))") == "False"
