package app

import (
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
)

func TestAHostTellsItsPublicKey(t *testing.T) {
	cfg := ruled(t, "auth")
	_, client := liveOn(t, cfg, Options{})
	got := client("eve").result("auth_pubkey", `{}`)
	want, err := secret.In(cfg.Folders.Config, "").Recipient()
	if err != nil || got["age"] != want || got["kty"] != "OKP" || !strings.HasPrefix(want, "age1") {
		t.Errorf("got %v, want %s (%v)", got, want, err)
	}
}
