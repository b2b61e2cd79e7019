// LoraxFlags: LoRAX's flags and variables that have no meaning here, or none that could be kept. Used by `serve`, so
// that a deployment's command line goes on to work, or tells why it cannot.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace shoal {

class LoraxFlags {
 public:
  LoraxFlags() = default;
  LoraxFlags(const LoraxFlags&) = delete;  // the parser points into it
  LoraxFlags& operator=(const LoraxFlags&) = delete;

  void add_to(CLI::App& command);
  // Logs those that were given and do nothing, a line each. UsageError where one asks for other answers than those that
  // are given here.
  void apply() const;

 private:
  std::vector<std::string> given_;  // by place in the table; "": not given
};

}  // namespace shoal
