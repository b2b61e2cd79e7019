// The embedding routes, over the fake engine: what its hidden states become.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "server/test_service.h"

namespace shoal {
namespace {

using test::eventually;
using test::json_of;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

// Of the text as a prompt, scaled to length 1.
std::vector<float> expected_vector(const TestService& service, const std::string& text,
                                   const std::string& adapter = "") {
  Request request;
  request.prompt_ids = service.tokenizer().encode(text, SpecialTokens::kAdd).value();
  if (!adapter.empty()) request.adapter = AdapterKey{.source = "local", .id = adapter};
  std::vector<float> vector = service.engine.solo_hidden(request);
  double sum = 0.0;
  for (const float value : vector) sum += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / std::sqrt(sum));
  return vector;
}

void expect_vector(const OutputJson& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(found[i].get<float>(), expected[i]);
}

TEST(Embed, GivesLoraxsForm) {
  TestService service;
  for (const char* body : {R"({"inputs":"hello"})", R"({"inputs":"hello","parameters":null,"stream":false})",
                           R"({"inputs":"hello","parameters":{"adapter_id":"","merged_adapters":null}})"}) {
    const RawResponse response = post(service.port(), "/embed", body);
    ASSERT_EQ(response.status, 200) << response.body;
    const auto json = json_of(response.body);
    EXPECT_EQ(json.size(), 1U);
    expect_vector(json["embeddings"], expected_vector(service, "hello"));
  }
  const RawResponse adapted = post(
      service.port(), "/embed", R"({"inputs":"hello","parameters":{"adapter_id":"alpha","adapter_source":"local"}})");
  expect_vector(json_of(adapted.body)["embeddings"], expected_vector(service, "hello", "alpha"));
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Embed, GivesOpenAisFormAndLoraxsBesideIt) {
  TestService service;
  const RawResponse response =
      post(service.port(), "/v1/embeddings", R"({"model":"alpha","input":["hello","you there"],"user":"u"})");
  ASSERT_EQ(response.status, 200) << response.body;
  const auto json = json_of(response.body);
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["model"], "alpha");
  const auto tokens = service.tokenizer().encode("hello", SpecialTokens::kAdd).value().size() +
                      service.tokenizer().encode("you there", SpecialTokens::kAdd).value().size();
  EXPECT_EQ(json["usage"]["prompt_tokens"], tokens);
  EXPECT_EQ(json["usage"]["total_tokens"], tokens);
  ASSERT_EQ(json["data"].size(), 2U);
  EXPECT_EQ(json["embeddings"], json["data"]);
  const std::array<const char*, 2> texts = {"hello", "you there"};
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json["data"][i]["object"], "embedding");
    EXPECT_EQ(json["data"][i]["index"], i);
    expect_vector(json["data"][i]["embedding"], expected_vector(service, texts[i], "alpha"));
  }
}

TEST(Embed, TakesTokenIdsAndGivesBase64) {
  TestService service;
  const auto ids = service.tokenizer().encode("hello", SpecialTokens::kAdd).value();
  const std::string list = to_text(OutputJson(ids));
  for (const std::string& input : {list, "[" + list + "]", std::string(R"("hello")"), std::string(R"(["hello"])")}) {
    const RawResponse response =
        post(service.port(), "/v1/embeddings", R"({"model":"","encoding_format":"base64","input":)" + input + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const auto json = json_of(response.body);
    EXPECT_FALSE(json.contains("embeddings"));
    // Three floats are twelve bytes: sixteen characters without padding.
    const auto text = json["data"][0]["embedding"].get<std::string>();
    ASSERT_EQ(text.size(), 16U);
    const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::array<unsigned char, 12> bytes{};
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint32_t group = 0;
      for (std::size_t k = 0; k < 4; ++k)
        group = group << 6 | static_cast<std::uint32_t>(alphabet.find(text[4 * i + k]));
      for (std::size_t k = 0; k < 3; ++k) bytes[3 * i + k] = static_cast<unsigned char>(group >> (16 - 8 * k));
    }
    std::array<float, 3> vector{};
    std::memcpy(vector.data(), bytes.data(), bytes.size());
    const std::vector<float> expected = expected_vector(service, "hello");
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(vector[i], expected[i]);
  }
}

TEST(Embed, RefusesWhatItCannotServe) {
  TestService service;
  const struct {
    const char* path;
    const char* body;
    const char* text;
  } cases[] = {
      {"/embed", "{}", "inputs"},
      {"/embed", R"({"inputs":["a"]})", "inputs"},
      {"/embed", R"({"inputs":""})", "the prompt holds no token"},
      {"/embed", R"({"inputs":"a","parameters":{"merged_adapters":{"ids":["a"]}}})", "merged_adapters.weights"},
      {"/embed", R"({"inputs":"a","parameters":5})", "parameters"},
      {"/v1/embeddings", R"({"input":"a"})", "model"},
      {"/v1/embeddings", R"({"model":""})", "input"},
      {"/v1/embeddings", R"({"model":"","input":[]})", "the prompt holds no token"},
      {"/v1/embeddings", R"({"model":"","input":[["a"]]})", "input"},
      {"/v1/embeddings", R"({"model":"","input":[{}]})", "input"},
      {"/v1/embeddings", R"({"model":"","input":["a",""]})", "the prompt holds no token"},
      {"/v1/embeddings", R"({"model":"","input":"a","encoding_format":"int8"})", "encoding_format"},
      {"/v1/embeddings", R"({"model":"","input":"a","dimensions":2})", "dimensions"},
      {"/v1/embeddings", R"({"model":"","input":[99999]})", "token id 99999 is not in the vocabulary"},
  };
  for (const auto& each : cases) {
    const RawResponse response = post(service.port(), each.path, each.body);
    EXPECT_GE(response.status, 400) << each.body;
    EXPECT_LT(response.status, 500) << each.body;
    EXPECT_NE(response.body.find(each.text), std::string::npos) << each.body << " -> " << response.body;
  }
  std::string many = R"({"model":"","input":["a")";
  for (int i = 0; i < 2048; ++i) many += R"(,"a")";
  EXPECT_NE(post(service.port(), "/v1/embeddings", many + "]}").body.find("at most 2048"), std::string::npos);
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Embed, AClientThatLeavesCancelsAllOfItsInputs) {
  TestService service;
  service.engine.hold();
  {
    RawClient client(service.port());
    client.post("/v1/embeddings", R"({"model":"","input":["a","b","c"]})");
    EXPECT_TRUE(eventually([&] { return service.scheduler.stats().queued + service.scheduler.stats().running == 3; }));
  }
  ASSERT_TRUE(eventually([&] { return service.server.num_connections() == 0; }));
  service.engine.resume();
  EXPECT_TRUE(service.comes_to_rest());
}

}  // namespace
}  // namespace shoal
