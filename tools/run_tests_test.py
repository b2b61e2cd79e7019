"""run_tests.py finds skips in ctest's report, and excuses only those that the machine accounts for."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run_tests  # noqa: E402  (the path above comes first)

REPORT = """<testsuite>
<testcase name="ops_avx512" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[  SKIPPED ] All/Ops.Norm/avx512 (0 ms)</system-out></testcase>
<testcase name="server" status="run"><system-out>[ RUN      ] Tls.Reads
[  SKIPPED ] Tls.Reads (0 ms)
[  PASSED  ] 3 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Tls.Reads</system-out></testcase>
<testcase name="e2e_chat" status="run"><system-out>
SKIPPED [1] tests/e2e/test_chat.py:10: needs a browser
1 passed, 1 skipped in 0.10s</system-out></testcase>
<testcase name="core" status="run"><system-out>[  PASSED  ] 9 tests.</system-out></testcase>
</testsuite>"""
LABELS = {"ops_avx512": {"unit", "per_isa"}, "server": {"unit"}, "e2e_chat": {"e2e"}, "core": {"unit"}}


class RunTests(unittest.TestCase):
    def test_each_skip_is_found_once(self):
        found = [(skip.test, skip.detail) for skip in run_tests.skips_in_report(REPORT, LABELS)]
        self.assertEqual(
            found,
            [
                ("ops_avx512", "all of it"),
                ("server", "Tls.Reads"),
                ("e2e_chat", "tests/e2e/test_chat.py:10: needs a browser"),
            ],
        )

    def test_a_kernel_set_is_excused_only_where_its_instructions_are_missing(self):
        skip = run_tests.Skip("ops_avx512bf16", {"unit", "per_isa"}, "all of it")
        avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
        self.assertTrue(run_tests.is_excused(skip, avx512, gpu=False))
        self.assertFalse(run_tests.is_excused(skip, avx512 | {"avx512_bf16"}, gpu=False))
        self.assertFalse(run_tests.is_excused(run_tests.Skip("server", {"unit"}, "avx512bf16"), set(), gpu=False))

    def test_cuda_is_excused_only_without_a_gpu(self):
        skip = run_tests.Skip("ops_cuda", {"cuda"}, "all of it")
        self.assertTrue(run_tests.is_excused(skip, set(), gpu=False))
        self.assertFalse(run_tests.is_excused(skip, set(), gpu=True))


if __name__ == "__main__":
    unittest.main()
