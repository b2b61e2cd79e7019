// The commands of the program, one file each. Each adds its flags to the parser and returns what runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shoal {

// Runs after parsing; returns the exit code. Throws StartError (exit 1) or UsageError (exit 2).
using Command = std::function<int()>;

Command add_serve_command(CLI::App& app);
Command add_generate_command(CLI::App& app);
Command add_logits_command(CLI::App& app);
Command add_bench_command(CLI::App& app);
Command add_inspect_command(CLI::App& app);

}  // namespace shoal
