package secret

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

func TestWhatIsEncryptedToTheStoreIsOpenedWithItsKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	s := In(dir, "")
	public, err := s.Recipient()
	if err != nil || !strings.HasPrefix(public, "age1") {
		t.Fatal(public, err)
	}
	if again, err := In(dir, "").Recipient(); err != nil || again != public {
		t.Errorf("then it is %s, %v", again, err)
	}
	to, err := age.ParseX25519Recipient(public)
	if err != nil {
		t.Fatal(err)
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "for the host"); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(dir, "secrets.key"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	by, err := age.ParseIdentities(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.Decrypt(&sealed, by...)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "for the host" {
		t.Errorf("got %q, %v", b, err)
	}
	set(t, s, "A", "value")
	if err := os.Remove(filepath.Join(dir, "secrets.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recipient(); !errors.Is(err, ErrLost) {
		t.Errorf("a lost key is %v", err)
	}
}
