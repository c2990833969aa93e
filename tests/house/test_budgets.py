"""One sitting per file, one screen per function: no source file or function is over its budget of lines and branches."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest
from radon.complexity import cc_visit
from radon.visitors import Function

SOURCE = Path(__file__).parents[2] / "src" / "paceline"
CORE = ("core", "types", "algo", "ports", "config")


class Budget(NamedTuple):
    """Most code lines (without blanks, comments and docstrings) of a file and a function, and most paths through a function."""

    file: int
    function: int
    complexity: int


INNER, EDGE = Budget(300, 50, 8), Budget(500, 80, 12)


def code_lines(node: ast.AST, source: list[str]) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = [n.body[0] for n in ast.walk(node) if isinstance(n, documented) and ast.get_docstring(n, clean=False) is not None]
    prose = {number for string in strings for number in range(string.lineno, (string.end_lineno or 0) + 1)}
    first, last = (1, len(source)) if isinstance(node, ast.Module) else (node.lineno, node.end_lineno)  # type: ignore[attr-defined]
    lines = (source[number - 1].strip() for number in range(first, last + 1) if number not in prose)
    return sum(bool(line) and not line.startswith("#") for line in lines)


def over_budget(name: str, text: str, budget: Budget) -> list[str]:
    source, tree = text.splitlines(), ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = [(name, code_lines(tree, source), budget.file)]
    sizes += [(f"{name} {node.name}", code_lines(node, source), budget.function) for node in functions]
    found = [f"{what}: {lines} lines of code, at most {most}" for what, lines, most in sizes if lines > most]
    for block in cc_visit(text):
        if isinstance(block, Function) and block.complexity > budget.complexity:
            found.append(f"{name} {block.fullname}: complexity {block.complexity}, at most {budget.complexity}")
    return found


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}))
def test_no_file_or_function_is_over_its_budget(package: str) -> None:
    files = sorted((SOURCE / package).rglob("*.py")) if (SOURCE / package).is_dir() else [SOURCE / package]
    budget = INNER if package in CORE else EDGE
    named = {file.relative_to(SOURCE).as_posix(): file.read_text(encoding="utf-8") for file in files}
    assert [fault for name, text in named.items() for fault in over_budget(name, text, budget)] == []


def test_what_is_over_its_budget_is_named_and_prose_does_not_count() -> None:
    text = '"""Words.\n\nMore."""\n\n# a remark\n\ndef f(x):\n    """Words."""\n    if x:\n        return 1\n    return 2\n'
    assert over_budget("a.py", text, Budget(4, 4, 2)) == []
    assert over_budget("a.py", text, Budget(3, 3, 1)) == [
        "a.py: 4 lines of code, at most 3",
        "a.py f: 4 lines of code, at most 3",
        "a.py f: complexity 2, at most 1",
    ]
