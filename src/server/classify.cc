// POST /classify and /classify_batch, which a model that generates text cannot answer.
#include "server/context.h"
#include "server/generation.h"

namespace shoal {

void handle_classify(ServerContext& context, const JsonCall& call) {
  refuse(context, call.writer,
         {.failure = Failure::kValidation,
          .message = context.services.model_id + " generates text, it has no head to classify with",
          .param = {}},
         ApiStyle::kNative);
}

}  // namespace shoal
