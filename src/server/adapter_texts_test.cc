// Tokenizers and chat templates that adapters bring: which are used, by whom, and how long they are kept.
#include "server/adapter_texts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <latch>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/test_folder.h"
#include "server/test_service.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::byte_level_tokenizer;
using test::eventually;
using test::get;
using test::json_events_of;
using test::json_of;
using test::post;
using test::RawResponse;
using test::TestFolder;
using test::TestService;

// The same but for the ids of all bytes - `a` and `b` change theirs with each other, the rest with bytes of the other
// half - and the name of a special token.
nlohmann::json swapped_tokenizer() {
  nlohmann::json json = byte_level_tokenizer();
  for (int byte = 0; byte < 256; ++byte) {
    const int low = byte & 0x7F;
    const bool is_letter = low == 'a' || low == 'b';
    json["model"]["vocab"][test::byte_level_char(byte)] = is_letter ? byte ^ ('a' ^ 'b') : byte ^ 0x80;
  }
  json["added_tokens"][1]["content"] = "<|own|>";
  return json;
}

class Adapters {
 public:
  void write(const std::string& id, const std::string& name, const std::string& text) const {
    fs::create_directories(folder_.path() / id);
    folder_.write(id + "/" + name, text);
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

struct Found {
  explicit Found(std::int64_t vocab_size = 262)
      : base(std::make_shared<const Texts>(test::load_tokenizer(byte_level_tokenizer()), nullptr)),
        texts(base, vocab_size, [this](const AdapterKey& key) -> Result<fs::path> {
          ++num_looks;
          if (!fs::exists(adapters.path() / key.id)) return Error{ErrorCode::kAdapterNotFound, "not there"};
          return adapters.path() / key.id;
        }) {}

  AdapterTexts::Found find(const std::string& id) { return texts.find(AdapterKey{.source = "local", .id = id}); }

  Adapters adapters;
  std::atomic<int> num_looks{0};
  std::shared_ptr<const Texts> base;
  AdapterTexts texts;
};

TEST(AdapterTexts, WhoBringsNothingHasTheBaseModels) {
  Found found;
  found.adapters.write("plain", "adapter_config.json", "{}");
  found.adapters.write("config", "tokenizer_config.json", R"({"eos_token":"<|end|>"})");
  EXPECT_EQ(found.texts.find(std::nullopt).value(), found.base);
  EXPECT_EQ(found.find("plain").value(), found.base);
  EXPECT_EQ(found.find("config").value(), found.base);
  EXPECT_EQ(found.find("absent").value(), found.base) << "whoever loads it says that it is absent";
  found.adapters.write("own", "tokenizer.json", swapped_tokenizer().dump());
  EXPECT_EQ(found.texts.find(AdapterKey{.source = "hub", .id = "own"}).value(), found.base);
  AdapterKey merged{.source = "local", .id = "own"};
  merged.merge = AdapterMerge{.ids = {"own", "plain"}, .weights = {1.0F, 1.0F}};
  EXPECT_EQ(found.texts.find(merged).value(), found.base);
  EXPECT_NE(found.find("own").value(), found.base);
}

TEST(AdapterTexts, EqualFilesAreReadOnceAndOthersAgain) {
  Found found;
  found.adapters.write("one", "tokenizer.json", swapped_tokenizer().dump());
  found.adapters.write("two", "tokenizer.json", swapped_tokenizer().dump());
  EXPECT_TRUE(found.texts.must_read({.source = "local", .id = "one"}));
  const auto one = found.find("one").value();
  EXPECT_FALSE(found.texts.must_read({.source = "local", .id = "one"}));
  EXPECT_EQ(found.find("one").value(), one);
  EXPECT_EQ(found.find("two").value(), one);
  EXPECT_EQ(one->tokenizer().encode("ab", SpecialTokens::kAdd).value(), (std::vector<std::int64_t>{'b', 'a'}));
  EXPECT_EQ(one->chat_template(), nullptr);
  // Replaced, as programs write files: under the same name.
  found.adapters.write("two", "new", byte_level_tokenizer().dump());
  fs::rename(found.adapters.path() / "two/new", found.adapters.path() / "two/tokenizer.json");
  const auto two = found.find("two").value();
  EXPECT_EQ(two->tokenizer().encode("ab", SpecialTokens::kAdd).value(), (std::vector<std::int64_t>{'a', 'b'}));
  EXPECT_EQ(found.find("one").value(), one);
  // The same tokenizer with another end is another one.
  found.adapters.write("three", "tokenizer.json", swapped_tokenizer().dump());
  found.adapters.write("three", "tokenizer_config.json", R"({"eos_token":"<|half|>"})");
  const auto three = found.find("three").value();
  EXPECT_NE(three, one);
  EXPECT_EQ(three->tokenizer().eos_ids().front(), 261);
}

TEST(AdapterTexts, ATemplateIsReadWhereItStands) {
  Found found;
  found.adapters.write("file", "chat_template.jinja", "file {{ messages[0].content }}");
  found.adapters.write("config", "tokenizer_config.json", R"({"chat_template":"config {{ messages[0].content }}"})");
  found.adapters.write("both", "chat_template.jinja", "file {{ messages[0].content }}");
  found.adapters.write("both", "tokenizer_config.json", R"({"chat_template":"config"})");
  for (const auto& [id, expected] : {std::pair{"file", "file hi"}, {"config", "config hi"}, {"both", "file hi"}}) {
    const auto texts = found.find(id).value();
    ASSERT_NE(texts->chat_template(), nullptr) << id;
    EXPECT_EQ(texts->chat_template()->render(R"([{"role":"user","content":"hi"}])", {}).value(), expected);
    EXPECT_EQ(texts->shared_tokenizer(), found.base->shared_tokenizer());
  }
}

TEST(AdapterTexts, FoldersOfTemplatesAreNotLookedInto) {
  // They may hold links to anywhere: who finds the folder looked at its own files alone.
  Found found;
  const TestFolder outside;
  outside.write("secret.jinja", "secret");
  found.adapters.write("linked", "chat_template.jinja", "own");
  fs::create_directories(found.adapters.path() / "linked/additional_chat_templates");
  fs::create_symlink(outside.path() / "secret.jinja",
                     found.adapters.path() / "linked/additional_chat_templates/tool_use.jinja");
  const auto texts = found.find("linked").value();
  EXPECT_EQ(texts->chat_template()->render("[]", {.tools_json = "[{}]"}).value(), "own");
}

TEST(AdapterTexts, WhatFilesDoNotSayIsTheBaseModels) {
  const Adapters model;
  nlohmann::json with_ends = byte_level_tokenizer();
  model.write("base", "tokenizer.json", with_ends.dump());
  model.write("base", "tokenizer_config.json", R"({"eos_token":"<|end|>","bos_token":"<|turn|>"})");
  model.write("base", "generation_config.json", R"({"eos_token_id":[7]})");
  const auto base =
      std::make_shared<const Texts>(std::shared_ptr<const Tokenizer>(Tokenizer::load(model.path() / "base")), nullptr);
  EXPECT_EQ(std::vector(base->tokenizer().eos_ids().begin(), base->tokenizer().eos_ids().end()),
            (std::vector<std::int64_t>{7, 259}));
  AdapterTexts adapters(base, 262, [&](const AdapterKey& key) { return Result(model.path() / key.id); });
  const auto find = [&](const char* id) { return adapters.find(AdapterKey{.source = "local", .id = id}).value(); };
  model.write("bare", "tokenizer.json", swapped_tokenizer().dump());
  model.write("bare", "chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
  const auto bare = find("bare");
  EXPECT_EQ(std::vector(bare->tokenizer().eos_ids().begin(), bare->tokenizer().eos_ids().end()),
            (std::vector<std::int64_t>{7, 259}));
  EXPECT_EQ(bare->tokenizer().bos_token(), "") << "its vocabulary lacks it";
  EXPECT_EQ(bare->chat_template()->render("[]", {}).value(), "<|end|>");
  model.write("template", "chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
  EXPECT_EQ(find("template")->chat_template()->render("[]", {}).value(), "<|turn|><|end|>");
  model.write("own", "tokenizer.json", swapped_tokenizer().dump());
  model.write("own", "tokenizer_config.json", R"({"eos_token":"<|half|>"})");
  const auto own = find("own");
  EXPECT_EQ(std::vector(own->tokenizer().eos_ids().begin(), own->tokenizer().eos_ids().end()),
            (std::vector<std::int64_t>{7, 261}));
}

TEST(AdapterTexts, ATokenizerThatDoesNotFitIsNotUsedButItsTemplateIs) {
  Found found(262);
  nlohmann::json larger = swapped_tokenizer();
  larger["added_tokens"].push_back(test::added_token(262, "<pad>", true));
  found.adapters.write("larger", "tokenizer.json", larger.dump());
  found.adapters.write("larger", "chat_template.jinja", "own");
  const auto texts = found.find("larger").value();
  EXPECT_EQ(texts->shared_tokenizer(), found.base->shared_tokenizer());
  EXPECT_EQ(texts->chat_template()->render("[]", {}).value(), "own");
  found.adapters.write("ends", "tokenizer.json", swapped_tokenizer().dump());
  found.adapters.write("ends", "generation_config.json", R"({"eos_token_id":262})");
  EXPECT_EQ(found.find("ends").value()->shared_tokenizer(), found.base->shared_tokenizer());
}

TEST(AdapterTexts, WhatCannotBeReadIsToldWithTheFileAndWithoutThePath) {
  Found found;
  found.adapters.write("broken", "tokenizer.json", "{");
  found.adapters.write("config", "tokenizer.json", swapped_tokenizer().dump());
  found.adapters.write("config", "tokenizer_config.json", "[]");
  fs::create_directories(found.adapters.path() / "folder/tokenizer.json");
  found.adapters.write("ends", "tokenizer.json", swapped_tokenizer().dump());
  found.adapters.write("ends", "generation_config.json", R"({"eos_token_id":"x"})");
  for (const auto& [id, words] : {std::pair{"broken", "tokenizer.json"},
                                  {"config", "tokenizer_config.json: not a JSON object"},
                                  {"folder", "tokenizer.json"},
                                  {"ends", "generation_config.json: eos_token_id is \"x\""}}) {
    for (int time = 0; time < 2; ++time) {
      const auto refused = found.find(id);
      ASSERT_FALSE(refused.ok()) << id;
      EXPECT_EQ(refused.error().code, ErrorCode::kAdapterInvalid);
      EXPECT_TRUE(refused.error().message.starts_with(words)) << refused.error().message;
      EXPECT_EQ(refused.error().message.find(found.adapters.path()), std::string::npos) << refused.error().message;
    }
  }
  found.adapters.write("broken", "new", swapped_tokenizer().dump());
  fs::rename(found.adapters.path() / "broken/new", found.adapters.path() / "broken/tokenizer.json");
  EXPECT_TRUE(found.find("broken").ok()) << "it was mended";
}

TEST(AdapterTexts, KeepsTheLastUsedAndLetsRequestsKeepTheirs) {
  Found found;
  const auto add = [&](std::size_t i) {
    found.adapters.write(std::to_string(i), "chat_template.jinja", fmt::format("template {}", i));
    return found.find(std::to_string(i)).value();
  };
  std::weak_ptr<const Texts> unused = add(0);
  const auto held = add(1);
  for (std::size_t i = 2; i < AdapterTexts::kMaxKept; ++i) add(i);
  EXPECT_FALSE(unused.expired());
  add(AdapterTexts::kMaxKept);
  EXPECT_TRUE(unused.expired());
  add(AdapterTexts::kMaxKept + 1);
  EXPECT_EQ(held->chat_template()->render("[]", {}).value(), "template 1");
  EXPECT_NE(found.find("1").value(), held) << "it had left";
  EXPECT_EQ(found.find("0").value()->chat_template()->render("[]", {}).value(), "template 0");
}

TEST(AdapterTexts, ServesSeveralThreads) {
  Found found;
  for (int i = 0; i < 4; ++i) {
    found.adapters.write(std::to_string(i), "tokenizer.json", swapped_tokenizer().dump());
    found.adapters.write(std::to_string(i), "chat_template.jinja", fmt::format("template {}", i % 2));
  }
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) {
        const auto texts = found.find(std::to_string((i + thread) % 4)).value();
        EXPECT_EQ(texts->chat_template()->render("[]", {}).value(), fmt::format("template {}", (i + thread) % 2));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(found.find("0").value(), found.find("2").value());
}

// --- through the server ---

struct OwnTexts {
  explicit OwnTexts(const ServerOptions& options = {}) : service({}, options) {
    adapters.write("own", "tokenizer.json", swapped_tokenizer().dump());
    adapters.write("own", "tokenizer_config.json",
                   R"({"eos_token":"<|end|>","chat_template":"<|own|>{{ messages[0].content }}"})");
    adapters.write("alpha", "adapter_config.json", "{}");
    service.adapter_root = adapters.path();
    tokenizer = Tokenizer::load(adapters.path() / "own", &service.tokenizer());
  }

  std::vector<std::int64_t> ids(const std::string& text) const {
    return tokenizer->encode(text, SpecialTokens::kAdd).value();
  }
  std::vector<std::int64_t> solo(std::vector<std::int64_t> prompt_ids, std::int64_t max_new_tokens) const {
    Request request;
    request.prompt_ids = std::move(prompt_ids);
    request.max_new_tokens = max_new_tokens;
    request.adapter = AdapterKey{.source = "local", .id = "own"};
    return service.engine.solo_tokens(request);
  }
  std::string text(const std::vector<std::int64_t>& ids, SkipSpecial skip = SkipSpecial::kYes) const {
    return tokenizer->decode(ids, skip);
  }
  InputJson answer(const char* path, const std::string& body, int status = 200) const {
    const RawResponse response = post(service.port(), path, body);
    EXPECT_EQ(response.status, status) << response.body;
    return json_of(response.body);
  }

  Adapters adapters;
  TestService service;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(AdapterTokenizer, IsReadWhileConnectionsAreServed) {
  ServerOptions options;
  options.http.num_threads = 1;
  OwnTexts own(options);
  // The connections' only thread looks first whether there is something to read.
  std::atomic<bool> read_begins{false};
  std::latch may_read(1);
  std::mutex mutex;
  std::optional<std::thread::id> connections;
  bool held = false;
  own.service.on_look = [&](const AdapterKey&) {
    {
      const std::lock_guard lock(mutex);
      if (!connections) connections = std::this_thread::get_id();
      if (held || connections == std::this_thread::get_id()) return;
      held = true;
    }
    read_begins = true;
    may_read.wait();
  };
  test::RawClient waits(own.service.port());
  waits.post("/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":4,"adapter_id":"own",)"
                          R"("ignore_eos_token":true}})");
  test::RawClient leaves(own.service.port());
  leaves.post("/v1/completions", R"({"model":"own","prompt":"ab","max_tokens":4})");
  ASSERT_TRUE(eventually([&] { return read_begins.load(); }));
  own.answer("/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":2}})");
  EXPECT_EQ(get(own.service.port(), "/health").status, 200);
  leaves.reset();
  may_read.count_down();
  EXPECT_EQ(json_of(waits.read_response().body)["generated_text"], own.text(own.solo(own.ids("ab"), 4)));
  EXPECT_TRUE(own.service.comes_to_rest());
}

TEST(AdapterTokenizer, ReadsPromptsAndWritesAnswers) {
  const OwnTexts own;
  const std::vector<std::int64_t> prompt = own.ids("abba<|own|>");
  ASSERT_EQ(prompt, (std::vector<std::int64_t>{'b', 'a', 'a', 'b', 260}));
  const std::vector<std::int64_t> expected = own.solo(prompt, 8);
  const InputJson whole =
      own.answer("/generate", R"({"inputs":"abba<|own|>","parameters":{"max_new_tokens":8,"ignore_eos_token":true,)"
                              R"("adapter_id":"own","details":true,"decoder_input_details":true,"top_n_tokens":3}})");
  EXPECT_EQ(whole["generated_text"], own.text(expected));
  const InputJson& details = whole["details"];
  std::string texts;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(details["tokens"][i]["id"], expected[i]);
    texts += details["tokens"][i]["text"].get<std::string>();
    for (const InputJson& top : details["top_tokens"][i]) {
      EXPECT_EQ(top["text"], own.text({top["id"].get<std::int64_t>()}, SkipSpecial::kNo));
    }
  }
  EXPECT_TRUE(own.text(expected, SkipSpecial::kNo).starts_with(texts)) << texts;
  std::string prompt_text;
  for (const InputJson& token : details["prefill"]) prompt_text += token["text"].get<std::string>();
  EXPECT_EQ(prompt_text, "abba<|own|>");
  // Streams and the base model beside it.
  const RawResponse stream =
      post(own.service.port(), "/generate_stream",
           R"({"inputs":"abba<|own|>","parameters":{"max_new_tokens":8,"ignore_eos_token":true,"adapter_id":"own"}})");
  EXPECT_EQ(json_events_of(stream.body).back()["generated_text"], own.text(expected));
  const InputJson base =
      own.answer("/generate", R"({"inputs":"abba","parameters":{"max_new_tokens":8,"ignore_eos_token":true}})");
  EXPECT_EQ(base["generated_text"], own.service.tokenizer().decode(own.service.solo_ids("abba", 8), SkipSpecial::kYes));
  const InputJson alpha = own.answer(
      "/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":8,"ignore_eos_token":true,"adapter_id":"alpha"}})");
  EXPECT_EQ(alpha["generated_text"],
            own.service.tokenizer().decode(own.service.solo_ids("ab", 8, "alpha"), SkipSpecial::kYes));
}

TEST(AdapterTokenizer, IsThatOfScoresEchoesAndEmbeddings) {
  const OwnTexts own;
  const std::vector<std::int64_t> prompt = own.ids("abba");
  const std::vector<std::int64_t> expected = own.solo(prompt, 6);
  const InputJson completion = own.answer(
      "/v1/completions",
      R"({"model":"own","prompt":[98,97,97,98],"max_tokens":6,"temperature":0,"ignore_eos_token":true,"echo":true,)"
      R"("logprobs":2,"skip_special_tokens":false})");
  const InputJson& choice = completion["choices"][0];
  EXPECT_EQ(choice["text"], "abba" + own.text(expected, SkipSpecial::kNo));
  const std::vector<std::string> tokens = choice["logprobs"]["tokens"];
  ASSERT_EQ(tokens.size(), prompt.size() + expected.size());
  EXPECT_EQ(tokens[0] + tokens[1] + tokens[2] + tokens[3], "abba");
  const InputJson scored =
      own.answer("/v1/completions", R"({"model":"own","prompt":"abba","max_tokens":2,"prompt_logprobs":1})");
  EXPECT_EQ(scored["choices"][0]["prompt_logprobs"][1]["97"]["decoded_token"], "b") << scored.dump();
  Request request;
  request.prompt_ids = prompt;
  request.adapter = AdapterKey{.source = "local", .id = "own"};
  request.embed = true;
  std::vector<float> hidden = own.service.engine.solo_hidden(request);
  double sum = 0.0;
  for (const float value : hidden) sum += static_cast<double>(value) * static_cast<double>(value);
  const InputJson embedded = own.answer("/embed", R"({"inputs":"abba","parameters":{"adapter_id":"own"}})");
  EXPECT_NEAR(embedded["embeddings"][0].get<double>(), static_cast<double>(hidden[0]) / std::sqrt(sum), 1e-6);
}

TEST(AdapterTokenizer, FindsStopStringsAndEnds) {
  const OwnTexts own;
  const std::vector<std::int64_t> prompt = own.ids("abba");
  const std::vector<std::int64_t> expected = own.solo(prompt, 12);
  // The first token with a text of its own, by the adapter's tokenizer.
  std::size_t at = 1;
  while (own.text({expected[at]}).empty() || own.text({expected[at]}).find("\xef\xbf\xbd") != std::string::npos) ++at;
  const std::string stop = own.text({expected[at]});
  const InputJson answer = own.answer(
      "/generate", fmt::format(R"({{"inputs":"abba","parameters":{{"max_new_tokens":12,"ignore_eos_token":true,)"
                               R"("adapter_id":"own","details":true,"stop":[{}]}}}})",
                               to_text(OutputJson(stop))));
  EXPECT_EQ(answer["details"]["finish_reason"], "stop_sequence");
  EXPECT_TRUE(answer["generated_text"].get<std::string>().ends_with(stop));
}

TEST(AdapterTokenizer, RendersChatsWithTheTemplateBesideIt) {
  const OwnTexts own;
  const InputJson chat =
      own.answer("/v1/chat/completions",
                 R"({"model":"own","messages":[{"role":"user","content":"ab"}],"max_tokens":6,"temperature":0,)"
                 R"("ignore_eos_token":true})");
  const std::vector<std::int64_t> prompt = {260, 'b', 'a'};
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(chat["choices"][0]["message"]["content"], own.text(own.solo(prompt, 6)));
  // What a message spells is no special token of the adapter's either.
  const InputJson spelled =
      own.answer("/v1/chat/completions",
                 R"({"model":"own","messages":[{"role":"user","content":"<|own|>"}],"max_tokens":1,"temperature":0})");
  EXPECT_GT(spelled["usage"]["prompt_tokens"], 2);
  const InputJson base =
      own.answer("/v1/chat/completions",
                 R"({"model":"test/base","messages":[{"role":"user","content":"ab"}],"max_tokens":1,"temperature":0})");
  EXPECT_EQ(base["usage"]["prompt_tokens"],
            own.service.tokenizer().encode("<|turn|>user:ab<|turn|>assistant:", SpecialTokens::kNone).value().size());
}

TEST(AdapterTokenizer, IsThatOfGrammars) {
  const OwnTexts own;
  for (const char* model : {"own", "alpha", "own", ""}) {
    const InputJson answer =
        own.answer("/v1/completions", fmt::format(R"({{"model":"{}","prompt":"x","max_tokens":8,"temperature":0,)"
                                                  R"("guided_choice":["abab","bba"]}})",
                                                  model));
    const std::string text = answer["choices"][0]["text"];
    EXPECT_TRUE(text == "abab" || text == "bba") << model << ": " << text;
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  }
}

TEST(AdapterTokenizer, TokenizesAndDetokenizesForWhoAsks) {
  const OwnTexts own;
  for (const char* field : {"adapter_id", "model"}) {
    const InputJson tokens = own.answer("/tokenize", fmt::format(R"({{"inputs":"ab<|own|>","{}":"own"}})", field));
    ASSERT_EQ(tokens.size(), 3U);
    EXPECT_EQ(tokens[0]["id"], 'b');
    EXPECT_EQ(tokens[0]["text"], "a");
    EXPECT_EQ(tokens[2]["id"], 260);
    const InputJson text = own.answer("/detokenize", fmt::format(R"({{"tokens":[98,97,260],"{}":"own"}})", field));
    EXPECT_EQ(text["prompt"], "ab<|own|>");
  }
  EXPECT_EQ(own.answer("/tokenize", R"({"inputs":"ab","model":"test/base"})")[0]["id"], 'a');
  EXPECT_EQ(own.answer("/detokenize", R"({"tokens":[98]})")["prompt"], "b");
  const InputJson large =
      own.answer("/tokenize", fmt::format(R"({{"inputs":"{}","adapter_id":"own"}})", std::string(6000, 'a')));
  EXPECT_EQ(large[5999]["id"], 'b') << "those that wait for their turn too";
  const InputJson absent = own.answer("/tokenize", R"({"inputs":"ab","adapter_id":"absent"})", 424);
  EXPECT_EQ(absent["error_code"], "adapter_not_found");
  own.answer("/tokenize", R"({"inputs":"ab","adapter_id":7})", 422);
}

TEST(AdapterTokenizer, WhatCannotBeReadIsToldAndHarmsNobody) {
  const OwnTexts own;
  own.adapters.write("broken", "tokenizer.json", "{");
  const InputJson refused = own.answer("/v1/completions", R"({"model":"broken","prompt":"ab","max_tokens":2})", 400);
  EXPECT_EQ(refused["error"]["code"], "adapter_invalid");
  const std::string words = refused["error"]["message"];
  EXPECT_TRUE(words.starts_with("adapter 'broken': tokenizer.json: ")) << words;
  const RawResponse load =
      post(own.service.port(), "/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":"broken"})");
  EXPECT_EQ(load.status, 400);
  EXPECT_NE(load.body.find("'x' cannot be loaded: tokenizer.json: "), std::string::npos) << load.body;
  own.answer("/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":2,"adapter_id":"own"}})");
  own.answer("/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":2}})");
  EXPECT_EQ(own.service.engine.num_pins(), 0);
}

TEST(AdapterTokenizer, ANameHasThatOfItsAdapter) {
  const OwnTexts own;
  own.answer("/v1/completions", R"({"model":"own","prompt":"ab","max_tokens":2})");
  const RawResponse load = post(own.service.port(), "/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":"own"})");
  ASSERT_EQ(load.status, 200) << load.body;
  EXPECT_EQ(own.answer("/tokenize", R"({"inputs":"ab","model":"x"})")[0]["id"], 'b');
  EXPECT_EQ(own.answer("/generate", R"({"inputs":"ab","parameters":{"max_new_tokens":4,"adapter_id":"x",)"
                                    R"("ignore_eos_token":true}})")["generated_text"],
            own.text(own.solo(own.ids("ab"), 4)));
}

}  // namespace
}  // namespace shoal
