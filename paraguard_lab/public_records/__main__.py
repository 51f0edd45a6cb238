"""Write `data/public_records/` anew: `python -m paraguard_lab.public_records FOLDER`.

FOLDER has the sources' own files. The sentence encoder and SmolLM2 read the prompts of
one of them, which takes a few minutes.
"""

import sys
from pathlib import Path

from paraguard_lab.public_records.build import build_records
from paraguard_utils.errors import UserError
from paraguard_utils.paths import display_path


def main() -> None:
    """Build, and say what was written."""
    if len(sys.argv) != 2:
        sys.exit("name the folder that has the sources' files")
    try:
        written = build_records(Path(sys.argv[1]))
    except UserError as error:
        sys.exit(str(error))
    print("\n".join(map(display_path, written)))


if __name__ == "__main__":
    main()
