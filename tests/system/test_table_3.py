"""`examples/table_3.py`: what its table says of the paper's effects, and what it trains again."""

import importlib.util
import pathlib
import subprocess
from types import SimpleNamespace

import pytest

PATH = pathlib.Path(__file__).parents[2] / "examples/table_3.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("table_3", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_effect_of_the_size_of_a_tie_is_a_tie(script):
    """Learned positions (row E) lower BLEU by 0.1 in the paper, which calls this no difference."""
    base = [dict.fromkeys(script.MEASURES, value) for value in (9.0, 10.0)]
    runs = [dict.fromkeys(script.MEASURES, value) for value in (10.0, 9.0)]  # no effect, margin 2
    for row in ("table3_e", "table3_d_smoothing02", "table3_d_dropout02"):
        found = script.effects({"base": base, row: runs})[row]
        verdicts = [script.verdict(*effect, tie) for effect, tie in
                    zip(found, script.PAPER_TIES, strict=True)]  # fmt: skip
        assert (
            verdicts
            == {
                "table3_e": ["yes: none"] * 2,
                "table3_d_smoothing02": ["no, within margin", "yes: none"],
                "table3_d_dropout02": ["yes: none", "no, within margin"],
            }[row]
        )


def test_an_effect_is_the_mean_difference_of_the_seeds(script):
    base, row = ([dict.fromkeys(script.MEASURES, value) for value in values]
                 for values in ((9.0, 10.0, 14.0), (10.0, 11.5, 14.5)))  # fmt: skip
    _, effect, margin = script.effects({"base": base, "table3_e": row})["table3_e"][0]
    # Differences of 1, 1.5 and 0.5: their standard deviation is 0.5.
    assert effect == pytest.approx(1) and margin == pytest.approx(2 * 0.5 / 3**0.5)


def test_it_goes_on_to_more_steps_refuses_fewer_and_stops_at_a_failure(
    script, tmp_path, monkeypatch
):
    calls, finished = [], script.result_path(tmp_path, "base", 1)
    finished.parent.mkdir()
    finished.write_text('{"steps": 2}')
    monkeypatch.setattr(subprocess, "call", lambda command, **options: calls.append(command) or 1)
    arguments = SimpleNamespace(
        output=tmp_path, data=tmp_path, rows=["base", "table3_e"], seeds=50, steps=3, processes=1
    )
    with pytest.raises(SystemExit, match="The training of base, seed 1, failed"):
        script.train_all(arguments)
    assert 1 <= len(calls) < 100 and calls[0][-2:] == ["base", "1"]
    arguments.steps = 1
    with pytest.raises(SystemExit, match="has results of more steps"):
        script.train_all(arguments)
