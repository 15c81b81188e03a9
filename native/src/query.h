// Queries about the scores that follow tokens. The core answers them itself, so that whole rows of
// scores are not copied to Python.
#pragma once

#include "model.h"

#include <vector>

namespace outrider {

// Tokens that cannot be chosen.
struct Forbidden {
  std::vector<int> always;
  std::vector<int> ends;   // forbidden at the first `early[n]` places of sequence n
  std::vector<int> early;  // for each sequence; empty for none
};

// A query about some sequences: their next tokens, or the log-probabilities of given ones.
struct Query {
  enum class Kind {
    argmax,     // the token with the largest score, the first of equals
    top_k,      // the best `count` tokens
    sample,     // a token by inverting the cumulative distribution
    log_probs,  // the log-probabilities of `given` tokens
  };
  Kind kind = Kind::argmax;
  std::vector<int> sequences;
  int places = 0;          // of each sequence, from its first new token
  Forbidden forbidden;     // n is an index into `sequences`
  bool log_probs = false;  // normalised over all tokens, including forbidden ones
  int count = 0;
  double temperature = 1.0;
  int top_k = 0;                // sample from the best top_k tokens; 0 for all
  double top_p = 1.0;           // sample from the smallest set with this probability; 1 for all
  std::vector<double> uniform;  // in [0, 1), for each sequence
  TokenRows given;
  std::vector<int> ends;  // the first of these, if given, stands for any of them
};

// For each sequence of a query, tokens and log-probabilities (if requested) at each place, or of
// the `count` best tokens.
struct Answer {
  TokenRows tokens;
  std::vector<std::vector<float>> log_probs;
};

// Throw std::invalid_argument for tokens or sequences that do not exist, or sizes that differ.
void check_forbidden(const Forbidden& forbidden, const Model& model, std::size_t sequences);
void check_query(const Query& query, const Model& model, const State& state);

// One row of scores of the vocabulary, and the buffers of its worker.
struct ScoreRow {
  const RowFunctions& rows;
  float* logits;
  int vocab_size;
  WorkerBuffers& own;
};

// Reserves the buffers of `answer_place`.
void reserve_answer(WorkerBuffers& own, const Model& model, bool samples);
// Answers a query at one place of its sequence n. Overwrites the scores.
void answer_place(ScoreRow& scores, const Query& query, std::size_t n, int place, Answer& answer);

// Reserves the buffers of `find_argmax` for a pass of `rows` rows.
void reserve_argmax(SharedBuffers& shared, WorkerBuffers& own, const Model& model, int rows,
                    int threads);
// Writes the argmax of each row of a pass. Scores are compared while they are in the CPU cache, and
// those of a large head are bounded first (screen.h).
void find_argmax(ForwardPass& pass, const Model& model, const State& state,
                 const Forbidden& forbidden, int* best);

}  // namespace outrider
