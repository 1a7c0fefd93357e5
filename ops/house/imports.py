"""Find import circles between folders.

Imports inside functions or only for type checkers count too. A node is a folder with everything
below it, or a module beside folders. Imports of a method's room by the core do not count
(rooms.py).
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Graph = dict[str, set[str]]


def import_circles(
    root: Path, packages: Sequence[str], is_wiring: Callable[[str, str], bool] = lambda *_: False
) -> list[list[str]]:
    """Return the import circles among the members of each folder, each sorted. If
    `is_wiring(importing module, imported module)` is true, the import does not count."""
    graph = list_imports(root, packages)
    edges = {
        (name, target)
        for name, targets in graph.items()
        for target in targets
        if not is_wiring(name, target)
    }
    circles: list[list[str]] = []
    for folder in sorted({parent for name in graph for parent in _parents(name)}):
        circles += _circles(_graph_of(folder, edges))
    return circles


def list_imports(root: Path, packages: Sequence[str], *, at_start: bool = False) -> Graph:
    """Return module -> modules of `packages` that it imports; `at_start` leaves out functions."""
    list_nodes = _list_start_nodes if at_start else ast.walk
    modules = {
        _module_name(root, path): path
        for package in packages
        for path in python_files(root, package)
    }
    return {
        name: {
            target
            for node in list_nodes(ast.parse(path.read_text(encoding="utf-8")))
            for target in _targets(node, modules)
            if target in modules
        }
        for name, path in modules.items()
    }


def reach(graph: Graph, start: str) -> set[str]:
    """Return the nodes reachable from `start`; `start` itself only if it is on a circle."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        for target in graph[pending.pop()] - reached:
            reached.add(target)
            pending.append(target)
    return reached


def python_files(root: Path, package: str) -> list[Path]:
    """Return all modules of a package, sorted."""
    return sorted(
        path for path in (root / package).rglob("*.py") if "__pycache__" not in path.parts
    )


def _module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _list_start_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.dump(node):
            yield from _list_start_nodes(node)


def _targets(node: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        for alias in node.names:
            member = f"{node.module}.{alias.name}"
            yield member if member in modules else node.module
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def _graph_of(folder: str, edges: set[tuple[str, str]]) -> Graph:
    graph: Graph = {}
    depth = folder.count(".") + 2
    for source, target in edges:
        if source.startswith(f"{folder}.") and target.startswith(f"{folder}."):
            first, second = (".".join(name.split(".")[:depth]) for name in (source, target))
            if first != second:
                graph.setdefault(first, set()).add(second)
                graph.setdefault(second, set())
    return graph


def _circles(graph: Graph) -> list[list[str]]:
    reachable = {node: reach(graph, node) for node in graph}
    components = {
        tuple(sorted({node, *(other for other in reached if node in reachable[other])}))
        for node, reached in reachable.items()
    }
    return sorted([list(component) for component in components if len(component) > 1])
