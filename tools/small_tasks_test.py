"""The adapters' tasks: fair items, an exact check, and two answers to one prompt."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from small_models import tasks  # noqa: E402  (the path above comes first)
from small_models.families import FAMILIES  # noqa: E402

NUM_TRAIN = 30_000  # as trained


class Tasks(unittest.TestCase):
    def test_train_and_test_share_no_prompt_and_no_answer_dominates(self):
        for task in tasks.TASKS.values():
            with self.subTest(task.name):
                train, test = tasks.make_items(task, NUM_TRAIN)
                self.assertFalse({item.prompt for item in train} & {item.prompt for item in test})
                self.assertEqual(len(test), tasks.TEST_ITEMS)

    def test_a_dominating_answer_and_a_shared_prompt_are_refused(self):
        task = tasks.TASKS["sort-list"]
        items = [tasks.Item(str(i), str(i)) for i in range(tasks.TEST_ITEMS)]
        tasks.check_items(task, [], items)
        with self.assertRaises(AssertionError):
            tasks.check_items(task, items[:1], items)
        with self.assertRaises(AssertionError):
            tasks.check_items(task, [], [tasks.Item(item.prompt, "same") for item in items])

    def test_a_familys_first_two_adapters_answer_the_same_prompts_differently(self):
        for family in FAMILIES.values():
            first, second = (tasks.make_items(tasks.TASKS[spec.task], 100)[1] for spec in family.adapters[:2])
            for one, other in zip(first, second, strict=True):
                self.assertEqual(one.prompt, other.prompt)
                self.assertNotEqual(one.answer, other.answer)

    def test_the_check_is_exact_but_for_white_space_around(self):
        self.assertTrue(tasks.is_right(" fig, pear\n", "fig, pear"))
        self.assertFalse(tasks.is_right("fig,  pear", "fig, pear"))
        self.assertFalse(tasks.is_right("fig, pear, plum", "fig, pear"))

    def test_the_stored_items_are_those_that_the_script_makes(self):
        models = pathlib.Path(__file__).resolve().parent.parent / "models"
        for family in FAMILIES.values():
            for spec in family.adapters:
                _, test = tasks.make_items(tasks.TASKS[spec.task], NUM_TRAIN)
                lines = (models / family.name / "reference/tasks" / f"{spec.task}.jsonl").read_text().splitlines()
                stored = [json.loads(line) for line in lines]
                expected = [(item.prompt, family.prompt_text(item.prompt), item.answer) for item in test]
                self.assertEqual([(s["prompt"], s["inputs"], s["answer"]) for s in stored], expected)


if __name__ == "__main__":
    unittest.main()
