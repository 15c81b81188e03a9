// A model: reads sources, takes in tokens, drafts. It does not change once it is built, so any
// number of threads may call it at once, each with a state of its own.
#pragma once

#include "drafter.h"
#include "embeddings.h"
#include "layer.h"
#include "question.h"
#include "state.h"
#include "team.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace outrider {

enum class Position { none, sinusoidal, learned, rotary, bucketed };

constexpr int kScreened = 4;  // rows that are screened together; more share each weight anyway
constexpr int kMaxTokens = 1 << 20;  // tokens of a sequence that there can be room for

struct ModelSpec {
  int words = 0;  // of the vocabulary
  int width = 0, heads = 0, kv_heads = 0, inner = 0;
  int encoder_layers = 0, decoder_layers = 0;  // no encoder layers: a language model
  int max_positions = 0;
  float embedding_scale = 1.0f;
  int head_dim = 0;  // width of a head; 0 for the width divided by the heads
  bool pre_norm = false, gated = false, shared_embeddings = true;
  NormKind norm;
  bool embedding_norm = false;
  std::vector<double> frequencies;               // of rotary positions
  Buckets encoder_buckets, decoder_buckets;      // of bucketed positions
  bool recurrent = false;  // the decoder has SSRUs for self-attention
  Position position = Position::sinusoidal;
  Activation activation = Activation::relu;
  Precision precision = Precision::int8;
};

struct CtcSpec : SideDecoderSpec {
  int upsample = 0;
};

// What the rows of a call attend to: the KV cache of each sequence, and that of its source.
struct CacheViews {
  std::vector<KvCache*> caches;
  std::vector<const KvCache*> sources;
  std::vector<int> lengths;
  int longest = 0;  // of the sources

  void add(const KvCache& source, int length) {
    sources.push_back(&source);
    lengths.push_back(length);
    if (length > longest) longest = length;
  }
  void attach(ForwardPass& pass, const SineTable* angles, const OffsetBias* bias = nullptr) {
    pass.bias = bias;
    pass.caches = &caches;
    pass.source_caches = &sources;
    pass.source_lengths = &lengths;
    pass.angles = angles;
  }
};

// What a round brought, for each sequence: the guesses that were checked, and the likeliest token
// after the last one and after each guess.
struct RoundOutput {
  Draft drafted;
  Answer best;
  double drafting_seconds = 0.0;
};

class Model {
 public:
  Model(std::shared_ptr<PackedWeights> weights, const ModelSpec& spec,
        const std::optional<DrafterSpec>& drafter, const std::optional<CtcSpec>& ctc,
        const std::string& instruction_set, int threads);
  ~Model();

  const ModelSpec& spec() const { return spec_; }
  const char* instruction_set() const { return kernel_.name; }
  int threads() const { return team_.threads(); }
  int candidates() const { return drafter_ ? drafter_->candidates() : 0; }
  int upsample() const { return ctc_ ? ctc_->spec.upsample : 0; }
  const PackedWeights& weights() const { return *weights_; }
  std::size_t embedding_bytes() const { return tokens_.bytes() + source_tokens_.bytes(); }
  const std::shared_ptr<BufferPool>& buffer_pool() const { return pool_; }

  // Opens one sequence for each source, with room for so many tokens; for a language model all
  // sources are empty. Where there are `words`, in order, only those of a source may follow it:
  // whoever asks what comes next is told that no other does. A CTC decoder knows nothing of them.
  std::unique_ptr<State> encode(const std::vector<std::vector<int>>& sources,
                                const std::vector<int>& capacities, bool drafting, bool parallel,
                                const std::vector<std::vector<int>>& words = {});

  // Appends `tokens[b]` to sequence b, which is left alone if there are none. Writes logits
  // [sequences][width][words], or with `last` [sequences][1][words], those after the last token of
  // each; where a sequence has no token nothing is written.
  void extend(State& state, const std::vector<std::vector<int>>& tokens, int width, bool last,
              float* logits);

  // The same, but only tells the likeliest token after each; never a forbidden one.
  std::vector<std::vector<int>> likeliest(State& state, const std::vector<std::vector<int>>& tokens,
                                          const Forbidden& forbidden);

  // The same, but answers questions, each about sequences of its own: about what comes after all
  // of their tokens, or with `last` after the last. Without a question nothing is scored.
  std::vector<Answer> answer(State& state, const std::vector<std::vector<int>>& tokens,
                             const std::vector<Question>& questions, bool last);

  // Lets every sequence say its likeliest tokens, each fed back to it: `steps` of them, or fewer,
  // as many for all, where one says an end token.
  std::vector<std::vector<int>> greedy(State& state, const std::vector<int>& newest, int steps,
                                       const std::vector<int>& ends, const Forbidden& forbidden);

  // Appends tokens, and writes where each of them looks in its source: the weights of
  // cross-attention, [token][layer][head][key], all tokens of the first sequence first. Nothing is
  // written behind the last key of a source; there are `keys` of the longest.
  void cross_attention(State& state, const std::vector<std::vector<int>>& tokens, int keys,
                       float* weights);

  // Guesses `counts[b]` tokens after `last[b]`, which has not been taken in.
  Draft draft(State& state, const std::vector<int>& last, const std::vector<int>& counts,
              const DraftSampling& sampling, const DraftCandidates& out);

  // Forgets what sequences hold beyond `held` tokens, guesses `counts` tokens after `last`, and
  // takes in `last` and those of the guesses that are worth checking: at least one, and those of
  // which all before and with them hold with a chance of `min_survival`, but none behind one of
  // the sequence's `ends` (one list for all, or one for each).
  RoundOutput draft_and_verify(State& state, const std::vector<int>& held,
                               const std::vector<int>& last, const std::vector<int>& counts,
                               double min_survival, const std::vector<std::vector<int>>& ends,
                               const Forbidden& forbidden, bool log_probs);

  // Scores the slots of whole sequences, [sequences][slots][words]; `known` is [sequences][slots]
  // or null. The slots of a sequence are its source's length times `upsample`.
  void ctc(State& state, const std::int64_t* known, int sequences, int slots, float* logits);

 private:
  struct Ctc {
    CtcSpec spec;
    Stack stack;
    std::span<const float> copies;
    Matrix known, head;
  };
  struct Plan;
  struct Scored;
  struct Asked;
  struct Questions;
  struct Scratch;
  class ScratchLease;

  LayerShape layer_shape() const;
  void read_stack_parts(const std::string& side, const Buckets& buckets, Norm& norm,
                        OffsetBiases& biases);
  void check_state(const State& state) const;
  void check_token(int token) const;
  void check_tokens(const std::vector<int>& tokens) const;
  void check_forbidden(const Forbidden& forbidden, std::size_t sequences) const;
  void check_question(const Question& question, const State& state) const;
  void embed_token(const Embeddings& table, int token, float* out) const;
  void embed(ForwardPass& pass, const Embeddings& table,
             std::span<const float> position_table, const SineTable* sines, const Norm& norm) const;
  // `sines` is only read where positions are sinusoidal.
  void add_positions(ForwardPass& pass, std::span<const float> position_table,
                     const SineTable* sines) const;
  // The KV caches of the decoder, or of the drafter.
  static CacheViews view(const State& state, KvCache Caches::* part);

  void check_sources(const std::vector<std::vector<int>>& sources,
                     const std::vector<int>& capacities, bool drafting, bool parallel) const;
  void check_words(const std::vector<std::vector<int>>& words, std::size_t sources) const;
  std::unique_ptr<State> open_state(const std::vector<std::vector<int>>& sources,
                                    const std::vector<int>& capacities, bool drafting,
                                    bool parallel, const std::vector<std::vector<int>>& words);
  // `decoded`: whether the decoder will read the sources.
  void run_encoder(const std::vector<std::vector<int>>& sources, State& state, bool decoded);
  Plan plan(const State& state, const std::vector<std::vector<int>>& tokens) const;
  template <typename Prepare, typename UseHidden>
  void run_decoder(State& state, const Plan& plan, const Prepare& prepare,
                   const UseHidden& use_hidden);
  // `first` is the number of the pass's first row.
  void write_logits(ForwardPass& pass, const State& state, int first, const Scored& scored,
                    float* logits) const;
  // Computes this worker's columns of the logits of what the operand holds, row n of which is row
  // pass_row(n) of the pass, and goes where `out_rows` says.
  template <typename PassRow>
  void score(ForwardPass& pass, const State& state, int rows, const PassRow& pass_row,
             float* logits, const int* out_rows = nullptr) const;
  void argmax_tokens(ForwardPass& pass, const State& state, const Forbidden& forbidden,
                     int* best) const;
  // Whether so many rows are screened before their words are scored.
  bool screens(int rows) const { return !screen_.empty() && rows <= kScreened; }
  int scores_at_once() const;  // rows whose scores are held at a time
  void reserve_answers(SharedBuffers& shared, WorkerBuffers& own, const Questions& all,
                       int rows) const;
  void answer_rows(ForwardPass& pass, int first, const Questions& all) const;
  DraftPlan plan_draft(const State& state, const std::vector<int>& last,
                       const std::vector<int>& counts, const DraftSampling& sampling) const;
  void embed_slots(ForwardPass& pass, const DraftPlan& plan) const;
  // As the calls without `run_`, for who has the state to itself already.
  std::vector<std::vector<int>> run_likeliest(State& state,
                                              const std::vector<std::vector<int>>& tokens,
                                              const Forbidden& forbidden);
  std::vector<Answer> run_answer(State& state, const std::vector<std::vector<int>>& tokens,
                                 const std::vector<Question>& questions, bool last);
  Draft run_draft(State& state, const std::vector<int>& last, const std::vector<int>& counts,
                  const DraftSampling& sampling, const DraftCandidates& out);
  void project_known(ForwardPass& pass) const;
  void upsample_encoder_output(ForwardPass& pass, const State& state) const;

  std::unique_ptr<Scratch> acquire_scratch();
  void release_scratch(std::unique_ptr<Scratch> scratch);
  // Shares rows out among the workers of the team, at most `max_rows` of them at a time, and runs
  // work(pass) on each. `prepare` makes room for so many before; nothing may fail
  // after it.
  template <typename Prepare, typename Work>
  void run(std::span<const Row> rows, int sequences, int max_rows, const Prepare& prepare,
           const Work& work);

  std::shared_ptr<PackedWeights> weights_;  // everything below looks at them
  ModelSpec spec_;
  const Kernel& kernel_;
  Stack encoder_, decoder_;
  Embeddings tokens_, source_tokens_;  // the second empty where shared
  std::span<const float> position_table_, source_position_table_;  // learned positions
  Matrix head_;
  Screen screen_;  // of the head; empty where it is small
  std::optional<Drafter> drafter_;
  std::optional<Ctc> ctc_;
  Norm embedding_norm_, source_embedding_norm_;  // empty where embeddings are not normed
  SineTables sines_, angles_, drafter_angles_;
  OffsetBiases encoder_biases_, decoder_biases_;
  Team team_;
  std::vector<std::unique_ptr<Scratch>> idle_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
};

}  // namespace outrider
