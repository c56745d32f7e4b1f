"""What tests/attention_wrong_inputs.py lists, on the CPU, where the contents of tables are checked too."""

import pytest
import torch
from attention_wrong_inputs import TABLES, Change, WrongInputs


class TestCpu(WrongInputs):
    device = "cpu"
    other = "meta"

    @pytest.mark.parametrize(("argument", "change", "message"), TABLES)
    def test_contents_of_tables(self, argument: str, change: Change, message: str) -> None:
        operands = self.operands()
        operands[argument] = change(operands, self.other)
        with pytest.raises(RuntimeError, match=message):
            torch.ops.s2attn.neighborhood_attention(*operands.values())
        self.lives_on()
