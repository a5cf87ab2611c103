package secret

import "testing"

func TestVariablesThatLookLikeSecrets(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        bool
	}{
		{"GITHUB_PERSONAL_ACCESS_TOKEN", "x", true},
		{"OPENAI_API_KEY", "x", true},
		{"DB_PASSWORD", "x", true},
		{"aws_secret_access_key", "x", true},
		{"STRIPE_KEY", "x", true},
		{"SETTINGS", "ghp_0123456789abcdefghijklm", true},
		{"DB_PASSWORD", "", false},
		{"TOKEN_FILE", "/run/secrets/token", false},
		{"MAX_TOKENS", "100", false},
		{"KEYBOARD", "de", false},
		{"MEMORY_FILE_PATH", "${data}/memory.jsonl", false},
		{"SETTINGS", "sk-", false},
	} {
		if got := Suspicious(c.name, c.value); got != c.want {
			t.Errorf("%s=%s: %t, want %t", c.name, c.value, got, c.want)
		}
	}
}
