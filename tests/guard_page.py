"""The page docs/guards.md, made of the section `deployed` of data/guards.yaml: run this
file to write it anew.
"""

from collections.abc import Mapping
from typing import Any

from paraguard_utils import paths, registry

HEAD = """# Guards that people deploy

This page lists the entries of `deployed` in [data/guards.yaml](../data/guards.yaml), what each was checked against, and when.
[Usage](usage.md#guards) says how to query one.
Their weights were not run for this project: we read the makers' code and cards, and the adapters of others.
*Wording* says whose words the instruction is in; the interpretation `:ours` has the project's.
`python tests/guard_page.py` makes this page from that file.

An entry is as trusted as code.
A stranger's entry can run a function of yours, load a model, send each prompt to an address, and send the value of an environment variable there too.
So read a guard's file before you use it.
A service's key must be in a variable named `..._API_KEY`, `..._GUARD_KEY` or `..._SAFETY_KEY`, and its address in one named `..._BASE_URL` or `..._ENDPOINT`; other variables are rejected.

| Guard | Looks for, rejects from | Wording | Checked |
| --- | --- | --- | --- |
"""


def describe_guards(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page about entries of guards, by name.

    Parameters
    ----------
    entries : Mapping[str, Mapping[str, Any]]
    """
    rows = []
    for one in entries.values():
        names = ", ".join(f"`{pattern}`" for pattern in one["match"])
        looks = (
            f"{one['axis']}, {one.get('threshold', 0.5):g}"
            if one["kind"] != "refused"
            else f"refused: {one['about']}"
        )
        checked = one.get(
            "checked", "not one guard: any classifier whose labels are known by name"
        )
        open_ = f"; unverified: {one['unverified']}" if "unverified" in one else ""
        cells = (names, looks, one.get("wording", "none"), checked + open_)
        rows.append(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    page = describe_guards(registry.guard_entries("deployed"))
    (paths.ROOT / "docs" / "guards.md").write_text(page, encoding="utf-8")
