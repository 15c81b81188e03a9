// What can be asked about the scores that follow tokens, and what is answered: a few numbers, so
// that the scores themselves stay where they were computed.
#pragma once

#include <vector>

namespace outrider {

// Tokens that must not be said.
struct Forbidden {
  std::vector<int> always;                    // by anyone
  std::vector<std::vector<int>> by_sequence;  // by each beside those; empty for none
  std::vector<int> ends;                      // nor these at the
  std::vector<int> early;                     // first so many places of each; empty for none
};

// A question about some sequences: which tokens follow, or how likely given ones are.
struct Question {
  enum class Kind {
    likeliest,  // the token with the largest score, the first of equals
    top,        // the best `count` tokens
    draw,       // one drawn by the inverse of the cumulative distribution
    given,      // no token: how likely the `given` ones are
  };
  Kind kind = Kind::likeliest;
  std::vector<int> sequences;  // which are asked about
  int places = 0;              // how many places of each, from its first new token on
  Forbidden forbidden;         // of these sequences, in this order
  bool log_probs = false;      // of all tokens, the forbidden ones included
  int count = 0;
  double temperature = 1.0;
  int top_k = 0;  // tokens that are drawn from, the likeliest; 0 for all
  double top_p = 1.0;           // the least of these that have so much of the mass; 1 for all
  std::vector<double> uniform;  // in [0, 1), one for each sequence
  std::vector<std::vector<int>> given;
  std::vector<int> ends;  // where the first of these is given, any of them will do
};

// For each sequence of a question and each of its places: tokens (those of `top` stand for places),
// and their log-probabilities if asked for.
struct Answer {
  std::vector<std::vector<int>> tokens;
  std::vector<std::vector<float>> log_probs;
};

}  // namespace outrider
