// Stand-ins for instruction sets that do not multiply bf16 pairs. Included inside their unnamed namespaces.

constexpr bool kBf16Pairs = false;
constexpr void (*pack_pairs)(const PackX& pack) = nullptr;
