"""check_layers.py finds each kind of violation in a small tree, and nothing in a clean one."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers  # noqa: E402  (the path above comes first)

CLEAN = {
    "core/tensor.h": "#pragma once\n#include <vector>\n",
    "ops/matmul.h": '#pragma once\n#include "core/tensor.h"\n',
    "ops/cpu/kernel.cc": "#include <immintrin.h>\n#ifdef __AVX2__\n#endif\n",
    "server/connection.cc": '#include <boost/asio.hpp>\n#include "core/tensor.h"\n',
}


class CheckLayers(unittest.TestCase):
    def faults(self, changed: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **changed}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_layers.check(pathlib.Path(folder))

    def assert_one_fault(self, changed: dict[str, str], words: str) -> None:
        faults = self.faults(changed)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(words, faults[0])

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.faults({}), [])

    def test_a_room_may_not_include_one_above_it(self):
        self.assert_one_fault({"core/arena.cc": '#include "ops/matmul.h"\n'}, "core may not know ops")

    def test_neighbours_that_the_table_keeps_apart(self):
        self.assert_one_fault({"server/api.cc": '#include "ops/matmul.h"\n'}, "server may not know ops")

    def test_spaces_in_a_directive_do_not_hide_it(self):
        self.assert_one_fault({"core/arena.cc": '  #  include "ops/matmul.h"\n'}, "core may not know ops")

    def test_an_unknown_room_is_a_fault(self):
        self.assert_one_fault({"util/strings.h": "#pragma once\n"}, "not in the table")

    def test_a_missing_header_is_a_fault(self):
        self.assert_one_fault({"ops/norm.cc": '#include "core/gone.h"\n'}, "does not exist")

    def test_a_cycle_of_headers(self):
        cycle = {"ops/a.h": '#include "ops/b.h"\n', "ops/b.h": '#include "ops/c.h"\n', "ops/c.h": '#include "a.h"\n'}
        self.assert_one_fault(cycle, "ops/a.h -> ops/b.h -> ops/c.h -> ops/a.h")

    def test_boost_in_a_second_file(self):
        self.assert_one_fault({"server/tls.cc": "#include <boost/beast.hpp>\n"}, "Boost is included in 2 files")

    def test_device_conditions_stand_in_ops_only(self):
        self.assert_one_fault({"engine/engine.cc": "#if defined(SHOAL_WITH_CUDA)\n#endif\n"}, "asks for a device")
        self.assert_one_fault({"layers/linear.cc": "#ifdef __AVX512F__\n#endif\n"}, "asks for a device")

    def test_device_headers_and_cuda_files_stand_in_ops_only(self):
        self.assert_one_fault({"engine/graph.cc": "#include <cuda_runtime.h>\n"}, "a device header")
        self.assert_one_fault({"layers/norm.cu": "\n"}, "CUDA code stands under ops")

    def test_the_table_itself_has_no_cycle(self):
        graph = {room: sorted(known) for room, known in check_layers.MAY_INCLUDE.items()}
        self.assertEqual(check_layers.find_cycle(graph), [])


if __name__ == "__main__":
    unittest.main()
