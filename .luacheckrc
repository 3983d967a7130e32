-- The scripts are checked with their includes expanded: python tests/lua/expand.py FOLDER && luacheck FOLDER
std = "lua51"
globals = {}
read_globals = { "redis", "KEYS", "ARGV", "cjson", "cmsgpack" }
max_line_length = 120
max_comment_line_length = false
