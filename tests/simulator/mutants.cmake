# Bugs that a programmer could write, each in one place of the real scheduler: mutant(NAME FILE RIGHT WRONG) compiles
# FILE (in src/) once more with WRONG instead of RIGHT, which stands there exactly once. The simulator must find each
# within 1,000 traces. Read by CMakeLists.txt, which makes the targets, and by mutate.cmake, which writes the sources.

# A cancelled request keeps its state slot.
mutant(keeps_slot_of_cancelled scheduler/loop.cc
  [=[batch_.give_back(*sequence);]=]
  [=[if (!sequence->stream->cancelled()) batch_.give_back(*sequence);]=])

# A request that ends without a last event keeps its permit.
mutant(keeps_permit_of_cancelled scheduler/loop.cc
  [=[for (const auto& sequence : ended_) admission_.leave(sequence->request.tenant);]=]
  [=[for (const auto& sequence : ended_) {
      if (sequence->last_event.has_value()) admission_.leave(sequence->request.tenant);
    }]=])

# Whoever still waits for its adapter is not looked at when it is cancelled or overdue.
mutant(ignores_cancel_in_queue scheduler/loop.cc
  [=[  adapter_queue_.for_each(visit);
]=]
  [=[]=])

# Once a request has had its time, those that come later have theirs for ever.
mutant(forgets_next_deadline scheduler/loop.cc
  [=[    if (now < deadline) {
      next_deadline_ = std::min(next_deadline_, deadline);
]=]
  [=[    if (now < deadline) {
]=])

# Nobody takes the place of a request that ended, until something rings.
mutant(forgets_who_waits_for_a_place scheduler/loop.cc
  [=[    pins_released_ = true;
]=]
  [=[]=])

# A preempted sequence comes back without its last token.
mutant(preemption_loses_last_token scheduler/batch.cc
  [=[give_back(*youngest);]=]
  [=[give_back(*youngest);
  if (youngest->num_generated() > 0) youngest->tokens.pop_back();]=])

# A preempted sequence believes that its text is still in the cache.
mutant(preemption_keeps_cached_length scheduler/batch.cc
  [=[  sequence.num_cached = 0;
]=]
  [=[]=])

# A preempted sequence comes back without the tokens that its penalties count.
mutant(preemption_loses_penalty_history scheduler/batch.cc
  [=[  sequence.history_given = false;
]=]
  [=[]=])

# A preempted sequence lets go of its adapter, which it needs again.
mutant(preemption_unpins_adapter scheduler/batch.cc
  [=[give_back(*youngest);]=]
  [=[give_back(*youngest);
  youngest->pin.release();]=])

# The first of all is preempted and not the last.
mutant(preempts_the_oldest scheduler/batch.cc
  [=[  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();]=]
  [=[  std::unique_ptr<Sequence> youngest = std::move(running_.front());
  running_.erase(running_.begin());]=])

# The last to come is preempted, whatever its priority.
mutant(preempts_the_last_to_come scheduler/batch.cc
  [=[  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();]=]
  [=[  const auto last = std::max_element(running_.begin(), running_.end(),
                                     [](const auto& a, const auto& b) { return a->arrival < b->arrival; });
  std::unique_ptr<Sequence> youngest = std::move(*last);
  running_.erase(last);]=])

# A state slot is free while its sequence still has it.
mutant(gives_slot_back_twice scheduler/batch.cc
  [=[std::exchange(sequence.state_slot, -1)]=]
  [=[sequence.state_slot]=])

# The chunk after the first begins one token too late.
mutant(chunk_skips_a_token scheduler/batch.cc
  [=[if (succeeded) step_.rows[row]->num_cached += step_.plan.sequences[row].query_length;]=]
  [=[const PlanSequence& ran = step_.plan.sequences[row];
    const bool is_first_chunk = ran.logit_rows == 0 && ran.cached_length == 0;
    if (succeeded) step_.rows[row]->num_cached += ran.query_length + (is_first_chunk ? 1 : 0);]=])

# A sequence that ends gives back its slot, blocks and adapter while a step that was started before still uses them.
mutant(gives_back_while_a_step_runs scheduler/loop.cc
  [=[if (!sequence->ended || sequence->num_steps_under_way > 0) continue;]=]
  [=[if (!sequence->ended) continue;]=])

# The step behind one that runs takes another row's sample where a row before has ended.
mutant(takes_the_sample_of_another scheduler/batch.cc
  [=[plan_rows::add_next(sequence, row, static_cast<std::int32_t>(i), next_.plan);]=]
  [=[plan_rows::add_next(sequence, row, static_cast<std::int32_t>(next_.rows.size()), next_.plan);]=])

# A sample of one that has ended is sent to its reader.
mutant(answers_go_on_after_their_end scheduler/loop_steps.cc
  [=[if (sequence.ended) continue;]=]
  [=[]=])

# A prefix is shared one token before it is computed.
mutant(shares_prefix_too_early scheduler/batch.cc
  [=[first(static_cast<std::size_t>(sequence->num_cached))]=]
  [=[first(sequence->tokens.size())]=])

# All adapters share their prefixes, the base model too.
mutant(shares_prefix_between_adapters scheduler/adapter_queue.cc
  [=[sequence.prefix_key.adapter = sequence.pin.pinned().identity;]=]
  [=[]=])

# Prefixes are kept by the adapter's name, which stays when its files are replaced.
mutant(shares_prefix_with_replaced_adapter scheduler/adapter_queue.cc
  [=[sequence.prefix_key.adapter = sequence.pin.pinned().identity;]=]
  [=[sequence.prefix_key.adapter.low = std::hash<std::string>()(sequence.share_name);]=])

# Requests for hot adapters pass one for a cold adapter for as long as they come.
mutant(passes_without_bound scheduler/adapter_queue.cc
  [=[now - blocked->since < cycle_time_]=]
  [=[now >= blocked->since]=])

# A sequence goes on with the block that it freed when another had the same text first.
mutant(uses_block_after_free cache/block_table.cc
  [=[    own = held;
]=]
  [=[]=])

# A request that was passed too often goes before others, but the room for its adapter goes to them.
mutant(promotes_without_a_place scheduler/fair_queue.cc
  [=[  if (place != sequences.end()) sequence->round = std::min(sequence->round, (*place)->round);
]=]
  [=[]=])
