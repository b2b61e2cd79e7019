// All of Boost that the server includes: each file that does takes long to compile. Used by the http_*.cc of
// connections, by nobody else.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
