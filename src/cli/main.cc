#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <new>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/result.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

int fail(const char* message, int exit_code) {
  std::fprintf(stderr, "shoal: %s\n", message);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("shoal: one base model, thousands of LoRA adapters, one batch");
  app.set_version_flag("--version", SHOAL_VERSION);
  app.require_subcommand(1);
  std::map<CLI::App*, shoal::Command> commands;
  for (const auto add : {shoal::add_serve_command, shoal::add_generate_command, shoal::add_logits_command,
                         shoal::add_bench_command, shoal::add_inspect_command}) {
    shoal::Command command = add(app);
    commands[app.get_subcommands({}).back()] = std::move(command);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = error.get_exit_code() == 0;
    return asked_for_help ? app.exit(error) : fail(error.what(), kExitUsage);
  }
  try {
    return commands.at(app.get_subcommands().front())();
  } catch (const shoal::UsageError& error) {
    return fail(error.what(), kExitUsage);
  } catch (const std::bad_alloc&) {
    return fail("not enough memory for what was asked", kExitFailure);
  } catch (const std::exception& error) {
    return fail(error.what(), kExitFailure);
  }
}
