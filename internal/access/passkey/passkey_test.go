package passkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"testing"
)

func TestRelyingParty(t *testing.T) {
	for origin, want := range map[string]string{
		"http://localhost:3000": "localhost", "https://Tools.example.com": "tools.example.com",
		"http://127.0.0.1:3000": "", "http://[::1]:3000": "", "nothing": "",
	} {
		if got, err := RelyingParty(origin); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", origin, got, err, want)
		}
	}
}

// FuzzVerify gives messages of strangers to the verifier: nothing passes but what the key has signed.
func FuzzVerify(f *testing.F) {
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		f.Fatal(err)
	}
	challenge := bytes.Repeat([]byte{7}, 32)
	k := Key{Credential: []byte("credential"), Public: public, Origin: "https://a.example"}
	client, _ := json.Marshal(map[string]any{
		"type": "webauthn.get", "challenge": Text.EncodeToString(challenge), "origin": k.Origin,
	})
	party := sha256.Sum256([]byte("a.example"))
	auth := append(party[:], present|verified, 0, 0, 0, 1)
	sum := sha256.Sum256(client)
	signature := ed25519.Sign(private, append(bytes.Clone(auth), sum[:]...))
	f.Add(client, auth, signature)
	f.Add([]byte("{}"), append(party[:], present|verified|attested, 0, 0, 0, 1), []byte{1})
	f.Add(client, append(append(party[:], present|verified|attested, 0, 0, 0, 1), make([]byte, 18)...), []byte{})
	f.Fuzz(func(t *testing.T, gotClient, gotAuth, gotSignature []byte) {
		var a Assertion
		a.ID = Text.EncodeToString(k.Credential)
		a.Response.ClientDataJSON = Text.EncodeToString(gotClient)
		a.Response.AuthenticatorData = Text.EncodeToString(gotAuth)
		a.Response.Signature = Text.EncodeToString(gotSignature)
		_, err := a.Verify(k, challenge)
		right := bytes.Equal(gotClient, client) && bytes.Equal(gotAuth, auth) && bytes.Equal(gotSignature, signature)
		if (err == nil) != right {
			t.Errorf("%v for %q %x %x", err, gotClient, gotAuth, gotSignature)
		}
		var r Registration
		r.ID, r.Response.ClientDataJSON = a.ID, a.Response.ClientDataJSON
		r.Response.AuthenticatorData, r.Response.PublicKey = a.Response.AuthenticatorData, Text.EncodeToString(
			gotSignature,
		)
		if _, err := r.Verify(k.Origin, challenge); err == nil &&
			!bytes.Contains(gotClient, []byte("webauthn.create")) {
			t.Error("an assertion registers")
		}
	})
}
