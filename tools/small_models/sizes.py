"""How much is trained: the real thing, or a smoke test of the same path on a CPU."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    base_steps_most: int  # a family states its own
    step_tokens: int  # of a base step
    row_tokens: int
    dialogues: int
    adapter_steps: int
    adapter_batch: int  # items
    train_items: int
    medusa_steps: int
    checked_items: int  # of the test items
    expected_prompts: int = 20
    expected_tokens: int = 48


FULL = Sizes(
    base_steps_most=10_000,
    step_tokens=32768,
    row_tokens=512,
    dialogues=150_000,
    adapter_steps=700,
    adapter_batch=256,
    train_items=30_000,
    medusa_steps=1000,
    checked_items=200,
)
SMOKE = Sizes(
    base_steps_most=3,
    step_tokens=256,
    row_tokens=64,
    dialogues=300,
    adapter_steps=3,
    adapter_batch=4,
    train_items=200,
    medusa_steps=2,
    checked_items=4,
    expected_prompts=5,
    expected_tokens=4,
)
