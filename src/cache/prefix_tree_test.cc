#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "cache/block_table.h"

namespace shoal {
namespace {

using Tokens = std::vector<std::int64_t>;

// `num_blocks` full blocks, each of one repeated id.
Tokens text(std::initializer_list<std::int64_t> ids) {
  Tokens tokens;
  for (const std::int64_t id : ids) tokens.insert(tokens.end(), kBlockSize, id);
  return tokens;
}

struct Cache {
  explicit Cache(std::int64_t num_blocks, PrefixTreeOptions options = {}, BlockOrder order = BlockOrder::kAscending)
      : allocator(num_blocks, order, 3), tree(allocator, options) {}

  // A sequence that computes all of `tokens`: what it found, and its blocks.
  BlockTable run(const PrefixKey& key, const Tokens& tokens, std::int64_t* hit_blocks = nullptr) {
    BlockTable table(allocator, &tree);
    const PrefixTree::Match match = tree.find(key, tokens, std::ssize(tokens) / kBlockSize);
    if (hit_blocks != nullptr) *hit_blocks = match.num_blocks;
    table.start(key, match);
    EXPECT_TRUE(table.grow_to_tokens(std::ssize(tokens)));
    table.share(tokens);
    return table;
  }
  std::int64_t hit(const PrefixKey& key, const Tokens& tokens) const {
    return tree.find(key, tokens, std::ssize(tokens) / kBlockSize).num_blocks;
  }

  BlockAllocator allocator;
  PrefixTree tree;
};

const PrefixKey kBase;

TEST(PrefixTree, FindsFullBlocksUpToTheFirstDifference) {
  Cache cache(20);
  Tokens tokens = text({1, 2, 3});
  tokens.push_back(9);
  cache.run(kBase, tokens).clear();
  EXPECT_EQ(cache.tree.num_nodes(), 3) << "the fourth block is not full";
  EXPECT_EQ(cache.hit(kBase, tokens), 3);
  EXPECT_EQ(cache.hit(kBase, text({1, 2, 4})), 2);
  EXPECT_EQ(cache.hit(kBase, text({2, 3})), 0) << "the same block behind another text is another block";
  EXPECT_EQ(cache.tree.find(kBase, tokens, 2).num_blocks, 2);
  Tokens differs_late = text({1, 2});
  differs_late.back() = 7;
  EXPECT_EQ(cache.hit(kBase, differs_late), 1) << "one token of 16 differs";
  EXPECT_EQ(cache.hit(kBase, Tokens(15, 1)), 0);
}

TEST(PrefixTree, KeysShareNothing) {
  Cache cache(20);
  const PrefixKey adapter{.adapter = {.high = 1, .low = 2}, .salt = {}};
  const PrefixKey replaced{.adapter = {.high = 1, .low = 3}, .salt = {}};
  const PrefixKey tenant{.adapter = {.high = 1, .low = 2}, .salt = "b"};
  cache.run(adapter, text({1, 2})).clear();
  EXPECT_EQ(cache.hit(adapter, text({1, 2})), 2);
  for (const PrefixKey& other : {kBase, replaced, tenant}) EXPECT_EQ(cache.hit(other, text({1, 2})), 0);
  EXPECT_TRUE(cache.tree.make_room(20));
  EXPECT_EQ(cache.tree.num_keys(), 0) << "nothing is left of a key once its blocks are evicted";
}

TEST(PrefixTree, HeldBlocksStayAndIdleOnesGoInTheOrderOfTheirRelease) {
  Cache cache(6);
  BlockTable held = cache.run(kBase, text({1, 2}));
  cache.run(kBase, text({1, 3})).clear();
  cache.run(kBase, text({4, 5})).clear();
  EXPECT_EQ(cache.tree.num_idle(), 3);
  EXPECT_TRUE(cache.tree.make_room(3)) << "two more than the one that is free";
  EXPECT_EQ(cache.tree.num_evicted(), 2);
  EXPECT_EQ(cache.hit(kBase, text({1, 3})), 1) << "let go of first";
  EXPECT_EQ(cache.hit(kBase, text({4, 5})), 1) << "its end goes first";
  EXPECT_EQ(cache.hit(kBase, text({1, 2})), 2) << "held";
  EXPECT_FALSE(cache.tree.make_room(5));
  EXPECT_EQ(cache.tree.num_evicted(), 2) << "nothing is evicted in vain";
  EXPECT_EQ(cache.hit(kBase, text({4})), 1);
}

TEST(PrefixTree, WhoComputesTheSameTextTwiceKeepsOneBlock) {
  Cache cache(8);
  BlockTable first(cache.allocator, &cache.tree), second(cache.allocator, &cache.tree);
  for (BlockTable* table : {&first, &second}) {
    table->start(kBase, {});
    ASSERT_TRUE(table->grow_to_tokens(40));
  }
  Tokens tokens = text({1, 2});
  first.share(tokens);
  EXPECT_EQ(cache.allocator.num_used(), 6);
  second.share(tokens);
  EXPECT_EQ(cache.allocator.num_used(), 4);
  EXPECT_EQ(first.block_ids()[1], second.block_ids()[1]);
  EXPECT_NE(first.block_ids()[2], second.block_ids()[2]);
  first.clear();
  EXPECT_EQ(cache.tree.num_idle(), 0) << "the second one holds them still";
  second.clear();
  EXPECT_EQ(cache.tree.num_idle(), 2);
  EXPECT_EQ(cache.allocator.num_used(), 2);
}

TEST(PrefixTree, WindowNeedsItsOwnBlocksOnly) {
  Cache cache(12, {.sliding_window = 32});
  const Tokens tokens = text({1, 2, 3, 4, 5});
  cache.run(kBase, tokens).clear();
  {
    BlockTable again(cache.allocator, &cache.tree);
    const PrefixTree::Match match = cache.tree.find(kBase, tokens, 5);
    EXPECT_EQ(match.num_blocks, 5);
    EXPECT_EQ(match.first_block, 3);
    EXPECT_EQ(match.num_idle, 2);
    again.start(kBase, match);
    EXPECT_EQ(cache.tree.num_idle(), 3);
    EXPECT_EQ(again.block_ids()[2], -1);
    EXPECT_GE(again.block_ids()[3], 0);
  }
  // The blocks before the window were let go of first, so they are evicted first.
  EXPECT_TRUE(cache.tree.make_room(10));
  EXPECT_EQ(cache.tree.num_nodes(), 5) << "without their blocks they still spell the text";
  EXPECT_EQ(cache.hit(kBase, tokens), 5);
  EXPECT_EQ(cache.hit(kBase, text({1, 2, 3, 4})), 0) << "a block of its window is gone";
  EXPECT_EQ(cache.hit(kBase, text({1, 2, 3, 6, 5})), 0);
  EXPECT_TRUE(cache.tree.make_room(11));
  EXPECT_EQ(cache.hit(kBase, tokens), 0);
  EXPECT_TRUE(cache.tree.make_room(12));
  EXPECT_EQ(cache.tree.num_nodes(), 0);
}

// The obvious way: a list of whole texts, no tree, no hash.
class SlowModel {
 public:
  SlowModel(std::int64_t num_blocks, std::int64_t window) : num_free_(num_blocks), window_(window) {}

  using Text = std::tuple<std::uint64_t, Tokens>;  // of one block: the adapter, and all tokens up to its end
  struct Entry {
    Text text;
    std::int64_t holders = 0;
    std::int64_t released = 0;
  };

  static Text text_of(std::uint64_t adapter, const Tokens& tokens, std::int64_t blocks) {
    return {adapter, Tokens(tokens.begin(), tokens.begin() + blocks * kBlockSize)};
  }
  std::int64_t first_needed(std::int64_t blocks) const {
    return window_ == 0 ? 0 : std::max<std::int64_t>(0, blocks * kBlockSize - window_) / kBlockSize;
  }
  std::int64_t hit(std::uint64_t adapter, const Tokens& tokens) const {
    for (std::int64_t blocks = std::ssize(tokens) / kBlockSize; blocks > 0; --blocks) {
      bool whole = true;
      for (std::int64_t i = first_needed(blocks); i < blocks; ++i) {
        whole = whole && entries_.contains(text_of(adapter, tokens, i + 1));
      }
      if (whole) return blocks;
    }
    return 0;
  }
  void hold(const Text& text) { ++entries_[text].holders; }
  void release(const Text& text) {
    Entry& entry = entries_.at(text);
    if (--entry.holders == 0) entry.released = ++clock_;
  }
  // False where `count` blocks cannot be had.
  bool take(std::int64_t count) {
    if (num_free_ + num_idle() < count) return false;
    while (num_free_ < count) {
      auto oldest = entries_.end();
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (it->second.holders > 0) continue;
        if (oldest == entries_.end() || it->second.released < oldest->second.released) oldest = it;
      }
      entries_.erase(oldest);
      ++num_free_;
    }
    num_free_ -= count;
    return true;
  }
  void give(std::int64_t count) { num_free_ += count; }
  bool knows(const Text& text) const { return entries_.contains(text); }
  std::int64_t num_idle() const {
    return std::ranges::count_if(entries_, [](const auto& entry) { return entry.second.holders == 0; });
  }
  std::int64_t num_free() const { return num_free_; }

 private:
  std::map<Text, Entry> entries_;  // resident
  std::int64_t num_free_;
  std::int64_t window_;
  std::int64_t clock_ = 0;
};

struct Case {
  std::int64_t window;
  std::int64_t num_buckets;
};

class PrefixTreeRandom : public testing::TestWithParam<Case> {};

TEST_P(PrefixTreeRandom, DoesWhatAListOfTextsDoes) {
  constexpr std::int64_t kBlocks = 24;
  Cache cache(kBlocks, {.sliding_window = GetParam().window, .num_buckets = GetParam().num_buckets},
              BlockOrder::kShuffled);
  SlowModel model(kBlocks, GetParam().window);
  struct Running {
    std::uint64_t adapter;
    Tokens tokens;
    std::int64_t first;
    BlockTable table;
  };
  std::vector<Running> running;
  std::vector<SlowModel::Text> content(kBlocks);  // of each block that is shared
  std::mt19937_64 random(GetParam().window + 7);
  std::int64_t hits = 0;
  const auto end_one = [&](std::size_t index) {
    Running ended = std::move(running[index]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    const std::int64_t own = ended.table.num_blocks() - ended.table.num_shared();
    for (std::int64_t i = ended.table.num_shared(); i-- > ended.first;) {
      model.release(SlowModel::text_of(ended.adapter, ended.tokens, i + 1));
    }
    model.give(own);
    ended.table.clear();
  };
  for (int round = 0; round < 4000; ++round) {
    if (!running.empty() && random() % 3 == 0) end_one(random() % running.size());
    const std::uint64_t adapter = random() % 2;
    Tokens tokens;
    for (auto blocks = 1 + random() % 7; blocks > 0; --blocks) {
      tokens.insert(tokens.end(), kBlockSize, static_cast<std::int64_t>(random() % 2));
    }
    const PrefixKey key{.adapter = {.high = 0, .low = adapter}, .salt = {}};
    const PrefixTree::Match match = cache.tree.find(key, tokens, std::ssize(tokens) / kBlockSize);
    ASSERT_EQ(match.num_blocks, model.hit(adapter, tokens)) << "round " << round;
    hits += match.num_blocks > 0 ? 1 : 0;
    Running one{.adapter = adapter,
                .tokens = tokens,
                .first = match.first_block,
                .table = BlockTable(cache.allocator, &cache.tree)};
    one.table.start(key, match);
    for (std::int64_t i = match.first_block; i < match.num_blocks; ++i) {
      const SlowModel::Text whole = SlowModel::text_of(adapter, tokens, i + 1);
      model.hold(whole);
      ASSERT_EQ(content[static_cast<std::size_t>(one.table.block_ids()[static_cast<std::size_t>(i)])], whole);
    }
    const std::int64_t missing = std::ssize(tokens) / kBlockSize - match.num_blocks;
    const bool grown = one.table.grow_to_tokens(std::ssize(tokens));
    ASSERT_EQ(grown, model.take(missing));
    if (grown && random() % 5 != 0) {  // else it is cancelled before its first step ends
      for (std::int64_t i = match.num_blocks; i < one.table.num_blocks(); ++i) {
        const SlowModel::Text whole = SlowModel::text_of(adapter, tokens, i + 1);
        if (model.knows(whole)) model.give(1);
        model.hold(whole);
      }
      one.table.share(tokens);
      for (std::int64_t i = match.num_blocks; i < one.table.num_blocks(); ++i) {
        content[static_cast<std::size_t>(one.table.block_ids()[static_cast<std::size_t>(i)])] =
            SlowModel::text_of(adapter, tokens, i + 1);
      }
    }
    running.push_back(std::move(one));
    if (!grown || random() % 2 == 0) end_one(running.size() - 1);
    ASSERT_EQ(cache.tree.num_idle(), model.num_idle()) << "round " << round;
    ASSERT_EQ(cache.allocator.num_free(), model.num_free()) << "round " << round;
  }
  EXPECT_GT(hits, 500);
  EXPECT_GT(cache.tree.num_evicted(), 500);
  while (!running.empty()) end_one(0);
  EXPECT_TRUE(cache.tree.make_room(kBlocks));
  EXPECT_EQ(cache.tree.num_nodes(), 0);
  EXPECT_EQ(cache.tree.num_keys(), 0);
}

// One bucket: every hash collides, and only the comparison of tokens is left to tell texts apart.
INSTANTIATE_TEST_SUITE_P(Windows, PrefixTreeRandom,
                         testing::Values(Case{.window = 0, .num_buckets = 0}, Case{.window = 0, .num_buckets = 1},
                                         Case{.window = 20, .num_buckets = 0}, Case{.window = 48, .num_buckets = 1}));

}  // namespace
}  // namespace shoal
