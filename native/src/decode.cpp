#include "decode.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace outrider {
namespace {

// A state during a call: exclusive, and opened by this engine.
struct Call {
  State::ExclusiveUse use;
  Call(const Engine& engine, State& state) : use(state) { engine.check_state(state); }
};

// The tokens of a call as rows.
struct Plan {
  std::vector<Row> rows;
  std::vector<int> counts;  // of each sequence
  int longest = 0;
  const CrossWeights* cross_weights = nullptr;

  int first_row(const ForwardPass& pass) const { return static_cast<int>(pass.rows - rows.data()); }
};

// The KV caches of each sequence and of its source.
struct CacheViews {
  std::vector<KvCache*> caches;
  std::vector<const KvCache*> sources;
  std::vector<int> lengths;  // of the sources
  int longest = 0;

  CacheViews(const State& state, KvCache Caches::* part) {
    for (const auto& sequence : state.sequences) {
      caches.push_back(&((*sequence).*part));
      if (!sequence->source) continue;
      sources.push_back(&((*sequence->source).*part));
      lengths.push_back(sequence->source->length);
      longest = std::max(longest, lengths.back());
    }
  }
  void attach(ForwardPass& pass, const SineTable* rotary, const OffsetBias* bias) {
    pass.bias = bias;
    pass.caches = &caches;
    pass.source_caches = &sources;
    pass.source_lengths = &lengths;
    pass.rotary = rotary;
  }
};

Plan plan_rows(const Model& model, const State& state, const TokenRows& tokens) {
  if (tokens.size() != state.sequences.size())
    throw std::invalid_argument("extend: expected one list of tokens for each row of the state");
  Plan plan;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    const int length = state.sequences[b]->length, capacity = state.sequences[b]->capacity;
    const int sequence = static_cast<int>(b), count = static_cast<int>(tokens[b].size());
    if (tokens[b].size() > static_cast<std::size_t>(capacity - length))
      throw std::invalid_argument(
          std::to_string(tokens[b].size() + static_cast<std::size_t>(length)) +
          " tokens exceed the capacity of " + std::to_string(capacity));
    model.check_tokens(tokens[b]);
    for (int t = 0; t < count; ++t)
      plan.rows.push_back(
          {sequence, tokens[b][static_cast<std::size_t>(t)], length + t, length + t + 1});
    plan.counts.push_back(count);
    plan.longest = std::max(plan.longest, length + count);
  }
  return plan;
}

// Runs the decoder; `use_hidden` is called with the final hidden states in the residual stream.
void run_decoder(Engine& engine, State& state, const Plan& plan, const Engine::Prepare& prepare,
                 const Engine::Work& use_hidden) {
  constexpr int kRowsAtOnce = 1024;  // tokens of a long prompt
  if (plan.rows.empty()) return;
  const Model& model = engine.model();
  const Drafter* drafter = state.drafting() ? &*model.drafter : nullptr;
  CacheViews views(state, &Caches::decoder);
  std::vector<KvCache*> drafter_caches;
  if (drafter != nullptr) {
    drafter->reserve_states(state, plan.counts);
    drafter_caches = CacheViews(state, &Caches::drafter).caches;
  }
  engine.run(
      plan.rows, state.size(), kRowsAtOnce,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, model.decoder.shape(), count,
                        std::max(plan.longest, views.longest));
        if (drafter != nullptr) drafter->reserve_inputs(shared, own, count);
        prepare(shared, own, count);
      },
      [&](ForwardPass& pass) {
        views.attach(pass, state.rotary.get(), state.bias.get());
        pass.cross_weights = plan.cross_weights;
        model.embed(pass, model.input, state.sines.get());
        if (drafter != nullptr) {
          model.decoder.run(pass, [&](int layer) { drafter->tap(pass, layer); });
          pass.rotary = state.drafter_rotary.get();
          drafter->write_injected_kv(pass, state, drafter_caches);
        } else {
          model.decoder.run(pass);
        }
        use_hidden(pass);
      });
  for (std::size_t b = 0; b < plan.counts.size(); ++b) {
    if (plan.counts[b] == 0) continue;
    Sequence& sequence = *state.sequences[b];
    sequence.length_before = sequence.length;
    sequence.length += plan.counts[b];
  }
}

// Rows of a plan that are scored, ascending. Returns those of a pass, and moves their hidden states
// to the front of the residual stream.
std::span<const int> gather_rows(ForwardPass& pass, const Plan& plan, const std::vector<int>& rows,
                                 int width) {
  const int first = plan.first_row(pass);
  const auto begin = std::lower_bound(rows.begin(), rows.end(), first);
  const auto end = std::lower_bound(begin, rows.end(), first + pass.count);
  const std::span<const int> wanted(begin, end);
  float* stream = pass.own.stream.data();
  for (std::size_t n = 0; n < wanted.size(); ++n)
    if (wanted[n] - first != static_cast<int>(n))
      std::copy_n(stream + area(wanted[n] - first, width), width,
                  stream + area(static_cast<int>(n), width));
  return wanted;
}

// Computes this worker's columns of the logits of gathered rows, beginning at hidden state `at`.
// Row n is written to row out_rows[n] of `logits`, or to row n.
void score(ForwardPass& pass, const Model& model, const State& state, const Plan& plan,
           std::span<const int> rows, int at, float* logits, const int* out_rows = nullptr) {
  const int width = model.spec.width, vocab_size = model.spec.vocab_size;
  pass.own.operand.load(model.kernel, model.spec.precision,
                        pass.own.stream.data() + area(at, width), static_cast<int>(rows.size()),
                        width, width);
  const Range mine = pass.worker.share(model.head.panels());
  model.head.multiply(model.kernel, pass.own.operand, mine, logits + mine.begin * kPanel,
                      vocab_size, out_rows);
  const Range columns{mine.begin * kPanel, std::min(mine.end * kPanel, vocab_size)};
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const Row& row = plan.rows[static_cast<std::size_t>(rows[n])];
    if (const Shortlist* list = state.shortlist(row.sequence))
      list->mask(columns, logits + area(out_rows == nullptr ? static_cast<int>(n) : out_rows[n],
                                        vocab_size));
  }
}

TokenRows run_argmax(Engine& engine, State& state, const TokenRows& tokens,
                     const Forbidden& forbidden) {
  const Plan plan = plan_rows(engine.model(), state, tokens);
  std::vector<int> best(plan.rows.size());
  run_decoder(
      engine, state, plan,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_argmax(shared, own, engine.model(), count, engine.threads());
      },
      [&](ForwardPass& pass) {
        find_argmax(pass, engine.model(), state, forbidden, best.data() + plan.first_row(pass));
      });
  TokenRows out;
  out.reserve(tokens.size());
  auto at = best.begin();
  for (const int count : plan.counts) {
    out.emplace_back(at, at + count);
    at += count;
  }
  return out;
}

// A place of a query, and its row of the plan.
struct Place {
  int row = 0;
  std::size_t query = 0, n = 0;
  int place = 0;
};

// Lists the places of all queries by row, and sizes the answers.
std::vector<Place> plan_places(const Plan& plan, const std::vector<Query>& queries, bool last,
                               int vocab_size, std::vector<Answer>& answers) {
  std::vector<int> first(1, 0);
  for (const int count : plan.counts) first.push_back(first.back() + count);
  std::vector<bool> taken(plan.counts.size(), false);
  std::vector<Place> places;
  for (std::size_t q = 0; q < queries.size(); ++q) {
    const Query& query = queries[q];
    const bool ranks = query.kind == Query::Kind::top_k;
    const bool chooses = query.kind != Query::Kind::log_probs;
    for (std::size_t n = 0; n < query.sequences.size(); ++n) {
      const auto sequence = static_cast<std::size_t>(query.sequences[n]);
      if (taken[sequence]) throw std::invalid_argument("two queries include the same row");
      taken[sequence] = true;
      const int tokens = plan.counts[sequence];
      const int count = std::min(query.places, last ? std::min(tokens, 1) : tokens);
      const int begin = last ? first[sequence + 1] - count : first[sequence];
      for (int t = 0; t < count; ++t) places.push_back({begin + t, q, n, t});
      const auto size =
          static_cast<std::size_t>(ranks && count > 0 ? std::min(query.count, vocab_size) : count);
      answers[q].tokens.emplace_back(chooses ? size : 0);
      answers[q].log_probs.emplace_back(!chooses || ranks || query.log_probs ? size : 0);
    }
  }
  std::sort(places.begin(), places.end(),
            [](const Place& left, const Place& right) { return left.row < right.row; });
  return places;
}

// All workers compute scores, each its own columns; then each answers for some rows. One worker
// answers a row from all of its scores, so the result does not depend on the number of threads.
std::vector<Answer> run_answer(Engine& engine, State& state, const TokenRows& tokens,
                               const std::vector<Query>& queries, bool last) {
  constexpr int kScores = 1 << 22;  // floats, 16 MiB
  const Model& model = engine.model();
  const int vocab_size = model.spec.vocab_size, step = std::max(16, kScores / vocab_size);
  const Plan plan = plan_rows(model, state, tokens);
  bool samples = false;
  for (const Query& query : queries) {
    check_query(query, model, state);
    samples = samples || query.kind == Query::Kind::sample;
  }
  std::vector<Answer> answers(queries.size());
  const std::vector<Place> places = plan_places(plan, queries, last, vocab_size, answers);
  std::vector<int> scored;
  for (const Place& place : places) scored.push_back(place.row);
  run_decoder(
      engine, state, plan,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        if (places.empty()) return;
        const int most = std::min({count, static_cast<int>(places.size()), step});
        shared.scores.reserve(area(most, vocab_size));
        reserve_answer(own, model, samples);
      },
      [&](ForwardPass& pass) {
        const std::span<const int> rows = gather_rows(pass, plan, scored, model.spec.width);
        const auto first = static_cast<std::size_t>(rows.data() - scored.data());
        float* logits = pass.shared.scores.data();
        const int count = static_cast<int>(rows.size());
        for (int done = 0; done < count; done += step) {
          const int some = std::min(step, count - done);
          score(pass, model, state, plan,
                rows.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(some)), done,
                logits);
          pass.worker.wait();  // `scores` is complete: workers share the rows
          const Range mine = pass.worker.share(some);
          for (int r = mine.begin; r < mine.end; ++r) {
            ScoreRow row{*model.kernel.rows, logits + area(r, vocab_size), vocab_size, pass.own};
            const Place& place = places[first + static_cast<std::size_t>(done + r)];
            answer_place(row, queries[place.query], place.n, place.place, answers[place.query]);
          }
          pass.worker.wait();  // `scores` is free for the next rows
        }
      });
  return answers;
}

// The list of one sequence for its block: null if empty, else with an element for each token.
template <typename T>
const T* part_of(const std::vector<std::vector<T>>& lists, std::size_t sequence, int count) {
  if (lists.empty() || lists[sequence].empty()) return nullptr;
  if (lists[sequence].size() < static_cast<std::size_t>(count))
    throw std::invalid_argument("draft: expected a number, or a known token, for every slot");
  return lists[sequence].data();
}

DraftPlan plan_draft(const Model& model, const State& state, const std::vector<int>& last,
                     const std::vector<int>& counts, const DraftSampling& sampling) {
  if (!model.drafter || !state.drafting())
    throw std::invalid_argument("this state was not opened for drafting");
  const std::size_t sequences = state.sequences.size();
  if (last.size() != sequences || counts.size() != sequences)
    throw std::invalid_argument("draft: expected one token and one count for each row");
  if ((!sampling.uniform.empty() && sampling.uniform.size() != sequences) ||
      (!sampling.known.empty() && sampling.known.size() != sequences))
    throw std::invalid_argument("draft: expected numbers and known tokens for each row");
  DraftPlan plan;
  plan.temperature = sampling.temperature;
  if (!(plan.temperature > 0.0f) || !std::isfinite(plan.temperature))
    throw std::invalid_argument("temperature must be above zero and finite in float32");
  for (std::size_t b = 0; b < sequences; ++b) {
    const int length = state.sequences[b]->length, capacity = state.sequences[b]->capacity;
    const int count = counts[b];
    if (count < 0 || count > kMaxTokens)
      throw std::invalid_argument("draft: cannot draft " + std::to_string(count) + " tokens");
    if (length + count > capacity)
      throw std::invalid_argument("draft: a block of " + std::to_string(count) +
                                  " tokens exceeds the capacity of " + std::to_string(capacity));
    model.check_token(last[b]);
    if (count == 0) continue;
    const DraftBlock block{static_cast<int>(b),
                           static_cast<int>(plan.rows.size()),
                           count,
                           last[b],
                           part_of(sampling.uniform, b, count),
                           part_of(sampling.known, b, count)};
    int token = last[b];
    for (int i = 0; i < count; ++i) {
      plan.rows.push_back({block.sequence, token, length + i, length + i + 1});
      plan.block_of.push_back(static_cast<int>(plan.blocks.size()));
      // The input of slot i + 1 is the token of slot i, if it is known.
      token = block.known == nullptr ? -1 : std::max(-1, block.known[i]);
      if (token >= model.spec.vocab_size) model.check_token(token);
    }
    plan.longest = std::max(plan.longest, count);
    plan.blocks.push_back(block);
  }
  return plan;
}

// Writes the inputs of a draft's slots: the last or a known token, else the mask.
void embed_slots(ForwardPass& pass, const Model& model, const DraftPlan& plan) {
  const int width = model.spec.width, first = static_cast<int>(pass.rows - plan.rows.data());
  for (int r = 0; r < pass.count; ++r) {
    const int token = pass.rows[r].token;
    float* x = pass.own.stream.data() + area(r, width);
    if (token < 0)
      std::copy_n(model.drafter->mask(), width, x);
    else
      model.embed_token(model.input, token, x);
    const int block = plan.block_of[static_cast<std::size_t>(first + r)];
    model.kernel.rows->add(x, model.drafter->slot(first + r - plan.block(block).first), width);
  }
}

Draft run_draft(Engine& engine, State& state, const std::vector<int>& last,
                const std::vector<int>& counts, const DraftSampling& sampling,
                const DraftCandidates& out) {
  const Model& model = engine.model();
  const DraftPlan plan = plan_draft(model, state, last, counts, sampling);
  if (out.ids != nullptr && out.slots < plan.longest)
    throw std::invalid_argument("draft: the output for candidates is too small");
  Draft drafted;
  for (const int count : counts) {
    drafted.tokens.emplace_back(static_cast<std::size_t>(count));
    drafted.confidence.emplace_back(static_cast<std::size_t>(count));
  }
  if (plan.rows.empty()) return drafted;
  const Drafter& drafter = *model.drafter;
  CacheViews views(state, &Caches::drafter);
  int longest = views.longest;
  for (const Row& row : plan.rows) longest = std::max(longest, row.visible);
  engine.run(
      plan.rows, state.size(), static_cast<int>(plan.rows.size()),
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, drafter.stack().shape(), count, longest);
        drafter.reserve_inputs(shared, own, count);
        drafter.reserve_choice(shared, own, count);
      },
      [&](ForwardPass& pass) {
        views.attach(pass, state.drafter_rotary.get(), nullptr);
        embed_slots(pass, model, plan);
        drafter.add_last_state(pass, state, plan);
        model.add_positions(pass, model.input, state.sines.get());
        drafter.stack().run(pass);
        drafter.choose_tokens(pass, plan, drafted, out);
      });
  return drafted;
}

// The number of drafts to verify: those before the joint confidence falls below `min_survival`, at
// least one, and none after a stop token.
std::size_t worth_verifying(const std::vector<int>& tokens, const std::vector<float>& confidence,
                            double min_survival, const std::vector<int>& stop_tokens) {
  double survival = 1.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    survival *= confidence[i];
    if (i == 0) continue;
    if (std::find(stop_tokens.begin(), stop_tokens.end(), tokens[i - 1]) != stop_tokens.end())
      return i;
    if (!(survival > 0.0 && survival >= min_survival)) return i;
  }
  return tokens.size();
}

// Writes W e(token) of every known token to `sublayer_out`.
void project_known(ForwardPass& pass, const Model& model) {
  const int width = model.spec.width;
  for (int r = 0; r < pass.count; ++r)
    model.embed_token(model.input, std::max(0, pass.rows[r].token),
                      pass.own.stream.data() + area(r, width));
  pass.own.operand.load(model.kernel, model.spec.precision, pass.own.stream.data(), pass.count,
                        width, width);
  pass.multiply(model.ctc->known, pass.shared.sublayer_out.data());
  pass.worker.wait();  // `sublayer_out` is complete: `embed_ctc` reads all its columns
}

// x_u = encoder_output[u / n] + copies[u mod n] + W e(known token) + position
void embed_ctc(ForwardPass& pass, const Model& model, const State& state) {
  const int width = model.spec.width, upsample = model.upsample();
  const RowFunctions& rows = *model.kernel.rows;
  for (int r = 0; r < pass.count; ++r) {
    const Row& row = pass.rows[r];
    float* x = pass.own.stream.data() + area(r, width);
    const Source& source = *state.sequences[static_cast<std::size_t>(row.sequence)]->source;
    std::copy_n(source.encoder_output.data() + area(row.position / upsample, width), width, x);
    rows.add(x, model.ctc->copies.data() + area(row.position % upsample, width), width);
    if (row.token >= 0) rows.add(x, pass.shared.sublayer_out.data() + area(r, width), width);
    rows.add(x, state.sines->row(row.position), width);
  }
}

}  // namespace

void extend(Engine& engine, State& state, const TokenRows& tokens, int width, bool last,
            float* logits) {
  const Call call(engine, state);
  const Model& model = engine.model();
  const Plan plan = plan_rows(model, state, tokens);
  std::vector<int> scored, outputs;
  int row = 0;
  for (int b = 0; b < state.size(); ++b) {
    const int count = plan.counts[static_cast<std::size_t>(b)];
    if (!last && count > width) throw std::invalid_argument("extend: the output is too small");
    for (int t = last ? std::max(0, count - 1) : 0; t < count; ++t) {
      scored.push_back(row + t);
      outputs.push_back(last ? b : b * width + t);
    }
    row += count;
  }
  run_decoder(
      engine, state, plan, [](SharedBuffers&, WorkerBuffers&, int) {},
      [&](ForwardPass& pass) {
        const std::span<const int> rows = gather_rows(pass, plan, scored, model.spec.width);
        if (!rows.empty())
          score(pass, model, state, plan, rows, 0, logits,
                outputs.data() + (rows.data() - scored.data()));
      });
}

TokenRows argmax(Engine& engine, State& state, const TokenRows& tokens,
                 const Forbidden& forbidden) {
  const Call call(engine, state);
  check_forbidden(forbidden, engine.model(), state.sequences.size());
  return run_argmax(engine, state, tokens, forbidden);
}

std::vector<Answer> answer(Engine& engine, State& state, const TokenRows& tokens,
                           const std::vector<Query>& queries, bool last) {
  const Call call(engine, state);
  return run_answer(engine, state, tokens, queries, last);
}

TokenRows greedy(Engine& engine, State& state, const std::vector<int>& last, int steps,
                 const std::vector<int>& ends, const Forbidden& forbidden) {
  const Call call(engine, state);
  check_forbidden(forbidden, engine.model(), state.sequences.size());
  if (steps < 1) throw std::invalid_argument("greedy: steps is " + std::to_string(steps));
  TokenRows next, out(last.size());
  for (const int token : last) next.push_back({token});
  for (bool ended = false; steps > 0 && !ended; --steps) {
    next = run_argmax(engine, state, next, forbidden);
    for (std::size_t n = 0; n < next.size(); ++n) {
      out[n].push_back(next[n][0]);
      ended = ended || std::find(ends.begin(), ends.end(), next[n][0]) != ends.end();
    }
  }
  return out;
}

void cross_attention(Engine& engine, State& state, const TokenRows& tokens, int keys,
                     float* weights) {
  const Call call(engine, state);
  const ModelSpec& spec = engine.model().spec;
  Plan plan = plan_rows(engine.model(), state, tokens);
  for (const auto& sequence : state.sequences)
    if (!sequence->source || sequence->source->length > keys)
      throw std::invalid_argument("cross_attention: the output is too small for a source");
  const CrossWeights record{weights, plan.rows.data(), spec.decoder_layers, spec.heads, keys};
  plan.cross_weights = &record;
  run_decoder(engine, state, plan, [](SharedBuffers&, WorkerBuffers&, int) {}, [](ForwardPass&) {});
}

Draft draft(Engine& engine, State& state, const std::vector<int>& last,
            const std::vector<int>& counts, const DraftSampling& sampling,
            const DraftCandidates& out) {
  const Call call(engine, state);
  return run_draft(engine, state, last, counts, sampling, out);
}

RoundOutput draft_and_verify(Engine& engine, State& state, const std::vector<int>& lengths,
                             const std::vector<int>& last, const std::vector<int>& counts,
                             double min_survival, const std::vector<int>& stop_tokens,
                             const Forbidden& forbidden, bool log_probs) {
  const auto start = std::chrono::steady_clock::now();
  const Call call(engine, state);
  check_forbidden(forbidden, engine.model(), state.sequences.size());
  state.rollback(lengths);
  Draft drafted = run_draft(engine, state, last, counts, {}, {});
  const std::chrono::duration<double> drafting = std::chrono::steady_clock::now() - start;

  TokenRows tokens(last.size());
  for (std::size_t b = 0; b < last.size(); ++b) {
    std::vector<int>& drafts = drafted.tokens[b];
    drafts.resize(worth_verifying(drafts, drafted.confidence[b], min_survival, stop_tokens));
    drafted.confidence[b].resize(drafts.size());
    tokens[b].reserve(drafts.size() + 1);
    tokens[b].push_back(last[b]);
    tokens[b].insert(tokens[b].end(), drafts.begin(), drafts.end());
  }
  RoundOutput round{std::move(drafted), {}, drafting.count()};
  if (!log_probs) {
    round.best.tokens = run_argmax(engine, state, tokens, forbidden);
    return round;
  }
  Query query;
  query.sequences.resize(last.size());
  std::iota(query.sequences.begin(), query.sequences.end(), 0);
  query.places = kMaxTokens;
  query.forbidden = forbidden;
  query.log_probs = true;
  round.best = std::move(run_answer(engine, state, tokens, {query}, false)[0]);
  return round;
}

void ctc(Engine& engine, State& state, const std::int64_t* known, int sequences, int slots,
         float* logits) {
  const Call call(engine, state);
  const Model& model = engine.model();
  if (sequences != state.size())
    throw std::invalid_argument("ctc: expected known tokens for each row of the state");
  if (!model.ctc || !state.parallel())
    throw std::invalid_argument("this state was not opened for parallel decoding");
  std::vector<Row> rows;
  std::vector<int> outputs;
  std::vector<KvCache> single_layer;  // used by all layers in turn
  std::vector<KvCache*> caches;
  const LayerShape& shape = model.ctc->stack.shape();
  single_layer.reserve(state.sequences.size());
  for (int b = 0; b < state.size(); ++b) {
    const int count =
        state.sequences[static_cast<std::size_t>(b)]->source->length * model.upsample();
    if (count > slots) throw std::invalid_argument("ctc: the output is too small for a sequence");
    for (int u = 0; u < count; ++u) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(b) * slots + u;
      const std::int64_t token = known == nullptr ? -1 : known[at];
      if (token >= model.spec.vocab_size)
        throw std::invalid_argument("ctc: token " + std::to_string(token) +
                                    " is not in the vocabulary");
      rows.push_back({b, token < 0 ? -1 : static_cast<int>(token), u, count});
      outputs.push_back(static_cast<int>(at));
    }
    single_layer.emplace_back(1, shape.heads, shape.head_width, count, engine.buffer_pool());
    caches.push_back(&single_layer.back());
  }
  const int width = model.spec.width;
  engine.run(
      rows, state.size(), static_cast<int>(rows.size()),
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, shape, count, slots);
      },
      [&](ForwardPass& pass) {
        pass.caches = &caches;
        if (known != nullptr) project_known(pass, model);
        embed_ctc(pass, model, state);
        model.ctc->stack.run_uncached(pass);
        pass.own.operand.load(model.kernel, model.spec.precision, pass.own.stream.data(),
                              pass.count, width, width);
        const Range mine = pass.worker.share(model.ctc->head.panels());
        model.ctc->head.multiply(model.kernel, pass.own.operand, mine, logits + mine.begin * kPanel,
                                 model.spec.vocab_size, outputs.data() + (pass.rows - rows.data()));
      });
}

}  // namespace outrider
