"""tools/craft_model.py still writes exactly the seeds that stand in fuzz/corpus."""
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tap import case, main


@case
def seeds_in_the_corpora_come_from_the_tool():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "tools/craft_model.py", "seeds", folder], check=True)
        made = sorted(p.relative_to(folder) for p in Path(folder).glob("*/seed-*"))
        kept = sorted(p.relative_to("fuzz/corpus") for t in {m.parts[0] for m in made} for p in Path("fuzz/corpus", t).glob("seed-*"))
        assert made == kept and len(made) > 15, (made, kept)
        for path in made:
            assert (Path(folder) / path).read_bytes() == (Path("fuzz/corpus") / path).read_bytes(), path


@case
def a_wrong_call_is_refused():
    got = subprocess.run([sys.executable, "tools/craft_model.py"], capture_output=True, text=True)
    assert got.returncode != 0 and "seeds" in got.stderr


main()
