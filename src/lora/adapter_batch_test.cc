#include "lora/adapter_batch.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(AdapterGrouping, LooksAtTheAdaptersOfItsRowsAlone) {
  constexpr std::size_t kSlots = 4000;
  const AdapterWeights three({}, {}, {});
  const AdapterWeights last({}, {}, {});
  // Whoever reads another slot reads a null pointer.
  std::vector<const AdapterWeights*> slots(kSlots, nullptr);
  slots[3] = &three;
  slots[kSlots - 1] = &last;
  AdapterGrouping grouping;
  const std::vector<std::int32_t> rows = {kSlots - 1, -1, 3, kSlots - 1, 3, 3};
  for (int build = 0; build < 2; ++build) {  // the counts start at zero again
    grouping.build(rows, slots);
    const LoraBatch batch = grouping.batch();
    ASSERT_EQ(batch.groups.size(), 2U);
    EXPECT_EQ(batch.groups[0].token_count, 3);
    EXPECT_EQ(batch.groups[1].token_begin, 3);
    EXPECT_EQ(batch.groups[1].token_count, 2);
    const std::vector<std::int32_t> order(batch.host_token_rows.begin(), batch.host_token_rows.end());
    EXPECT_EQ(order, (std::vector<std::int32_t>{2, 4, 5, 0, 3}));
  }
  grouping.build(std::vector<std::int32_t>{-1, -1}, slots);
  EXPECT_TRUE(grouping.batch().empty());
}

}  // namespace
}  // namespace shoal
