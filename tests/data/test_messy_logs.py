"""The outcome of each messy log: accepted with the right reading, warned about, or refused with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from messy_logs import ACCEPTED, NAMES, VARIANTS, Variant, clean

from aspc import data
from aspc.data.diagnostics import find_warnings
from aspc.errors import AspcError


def test_there_are_at_least_sixty_different_variants() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 60
    written = [(variant.write(variant.change(clean())), str(variant.options)) for variant in VARIANTS]
    assert len({(str(content), options) for content, options in written}) >= 60


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name.replace(" ", "-"))
def test_messy_logs_have_the_stated_outcome(tmp_path: Path, variant: Variant) -> None:
    content = variant.write(variant.change(clean()))
    path = tmp_path / f"log{variant.suffix}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if variant.refused:
        with pytest.raises(AspcError, match=variant.refused) as error:
            data.load(path, **variant.options)
        assert "\n" not in str(error.value)
        return
    dataset = data.load(path, **variant.options)
    assert tuple(dataset.episode_lengths) == variant.lengths
    kept = list(variant.source_rows)
    columns = {name: np.array(cells, float)[kept] for name, cells in clean().items() if name in NAMES}
    expected = {
        "observations": np.stack([columns["obs_temp"], columns["obs_flow"]], axis=1),
        "actions": columns["action_valve"][:, None],
        "rewards": columns["reward"],
    }
    for key in variant.checks:
        np.testing.assert_allclose(getattr(dataset, key), expected[key], rtol=1e-6, err_msg=key)
    said = [*dataset.notes, *find_warnings(dataset)]
    if variant.warned:
        assert any(re.search(variant.warned, text) for text in said), said
    elif variant in ACCEPTED:
        usual = ("action bounds are guessed", "there are only 40 rows", "'done' was read as terminals", "no timeouts")
        assert [text for text in said if not text.startswith(usual)] == []
