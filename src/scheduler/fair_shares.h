// FairShares: members that share what there is, each with what it was served so far, and who of those that wait is
// next: the least served. Used by FairLevel, for tenants and for the adapters of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "engine/adapter_states.h"

namespace shoal {

struct FairRule {
  std::int64_t slack =
      0;  // who was served no more than that above the least served of those that wait goes by its place
  std::int64_t saved = 0;  // how much of a share can be saved up by staying away
};

// Start-time fairness as in "Fairness in Serving Large Language Models" (Sheng et al., 2024): who begins to wait is set
// to at least what the least served of those that wait has, but for what may be saved, so that who sends a few requests
// now and then is not served like one of a flood. A debt is kept: who had more than others and comes back still had it.
// All is O(log members).
template <typename Item>
class FairShares {
 public:
  struct Member {
    Item item;
    std::int64_t served = 0;
    std::int64_t num_open = 0;        // requests, waiting or not: it stays for as long
    std::optional<QueuePlace> first;  // of its waiting requests; none: nothing waits
    bool set_aside = false;
    bool ahead = false;  // of those that wait, by more than the slack
    const std::string* name = nullptr;
  };

  explicit FairShares(const FairRule& rule) : rule_(rule) {}

  Member* find(const std::string& name) {
    const auto found = members_.find(name);
    return found == members_.end() ? nullptr : &found->second;
  }
  // One more request of that member; made if it is new.
  Member& open(const std::string& name) {
    const auto [found, is_new] = members_.try_emplace(name);
    Member& member = found->second;
    if (is_new) member.name = &found->first;
    if (member.num_open++ == 0) debtors_.erase({member.served, &member});
    ++num_open_;
    return member;
  }
  // One request less, none of them waiting if it was the last. The member may be gone afterwards.
  void close(Member& member) {
    CHECK_GT(member.num_open, 0);
    --num_open_;
    if (--member.num_open > 0) return;
    CHECK(!member.first.has_value());
    if (num_open_ == 0) {
      clear();
    } else if (member.served <= least_of_new()) {
      erase(member);
    } else {
      debtors_.insert({member.served, &member});
      if (debtors_.size() > kMostRemembered) forget_first_debtor();
    }
  }
  bool empty() const { return num_open_ == 0; }
  std::size_t num_members() const { return members_.size(); }

  // Its first waiting request changed.
  void set_first(Member& member, std::optional<QueuePlace> first) {
    take_out(member);
    if (first && !member.first) lift(member);
    if (!first && member.first) last_left_ = &member;
    member.first = first;
    put_in(member);
  }
  void charge(Member& member, std::int64_t amount) {
    take_out(member);
    member.served += amount;
    put_in(member);
  }

  bool has_next() const { return !by_served_.empty(); }
  Member& next() {
    const std::int64_t most_served = least_served() + rule_.slack;
    while (!ahead_.empty() && ahead_.begin()->first <= most_served) {
      Member& caught_up = *ahead_.begin()->second;
      ahead_.erase(ahead_.begin());
      caught_up.ahead = false;
      by_place_.insert({*caught_up.first, &caught_up});
    }
    while (by_place_.begin()->second->served > most_served) {
      Member& ahead = *by_place_.begin()->second;
      by_place_.erase(by_place_.begin());
      ahead.ahead = true;
      ahead_.insert({ahead.served, &ahead});
    }
    return *by_place_.begin()->second;
  }
  // It waits on, but next() does not see it until it is put back.
  void set_aside(Member& member) {
    CHECK(member.first.has_value() && !member.set_aside);
    take_out(member);
    member.set_aside = true;
  }
  void put_back(Member& member) {
    if (std::exchange(member.set_aside, false)) put_in(member);
  }

  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& [name, member] : members_) visit(member);
  }

 private:
  // Members without requests: names are not ours to bound.
  static constexpr std::size_t kMostRemembered = 4096;
  using ByServed = std::set<std::pair<std::int64_t, Member*>>;

  std::int64_t least_served() const { return by_served_.begin()->first; }
  // What who begins to wait counts as served at least: who has no more need not be remembered.
  std::int64_t least_of_new() const { return floor_ - rule_.saved; }

  // Of all that are ordered, if it is there.
  void take_out(Member& member) {
    if (member.set_aside || !member.first) return;
    by_served_.erase({member.served, &member});
    if (std::exchange(member.ahead, false)) {
      ahead_.erase({member.served, &member});
    } else {
      by_place_.erase({*member.first, &member});
    }
  }
  void put_in(Member& member) {
    if (member.set_aside || !member.first) return;
    by_served_.insert({member.served, &member});
    by_place_.insert({*member.first, &member});
  }

  void lift(Member& member) {
    if (!by_served_.empty()) {
      floor_ = std::max(floor_, least_served());
    } else if (last_left_ != nullptr) {
      floor_ = std::max(floor_, last_left_->served);
    }
    member.served = std::max(member.served, least_of_new());
    while (!debtors_.empty() && debtors_.begin()->first <= least_of_new()) forget_first_debtor();
  }

  void forget_first_debtor() {
    Member& paid = *debtors_.begin()->second;
    debtors_.erase(debtors_.begin());
    erase(paid);
  }

  void erase(Member& member) {
    if (last_left_ == &member) {
      floor_ = std::max(floor_, member.served);
      last_left_ = nullptr;
    }
    members_.erase(members_.find(*member.name));
  }

  void clear() {
    members_.clear();
    debtors_.clear();
    by_served_.clear();
    by_place_.clear();
    ahead_.clear();
    last_left_ = nullptr;
    floor_ = 0;
  }

  const FairRule rule_;
  std::unordered_map<std::string, Member> members_;
  ByServed by_served_;                                 // those that wait and are not set aside
  std::set<std::pair<QueuePlace, Member*>> by_place_;  // of these, those that were not found to be ahead
  ByServed ahead_;                                     // of these, the others
  ByServed debtors_;                                   // without requests, but remembered
  Member* last_left_ = nullptr;                        // who was the last to wait no more
  std::int64_t floor_ = 0;                             // what the least served of those that wait had, as it rose
  std::int64_t num_open_ = 0;
};

}  // namespace shoal
