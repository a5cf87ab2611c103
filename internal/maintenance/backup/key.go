package backup

import (
	"strings"

	"filippo.io/age"

	"gatehouse/internal/access/secret"
)

const (
	// scryptWork makes guessing one password cost 64 MiB and a tenth of a
	// second or more.
	scryptWork    = 16
	maxScryptWork = 20 // of a backup that somebody else made: 1 GiB
	// MinPassword is how many bytes a password has at least.
	MinPassword = 12
)

// Key is what a backup is encrypted with: a password, or public keys of age.
type Key struct {
	Password   secret.Text
	Recipients []string    // age1..., instead of a password
	Identity   secret.Text // AGE-SECRET-KEY-1..., to read what was encrypted to its public key
}

// CheckCreate says what is wrong with a key that a backup is to be made with, so
// that a caller is told before the work begins.
func (k Key) CheckCreate() error {
	_, err := k.recipients(1)
	return err
}

func (k Key) recipients(work int) ([]age.Recipient, error) {
	if len(k.Recipients) == 0 {
		if len(k.Password.Reveal()) < MinPassword {
			return nil, invalid("the password has %d bytes; expected at least %d", len(k.Password.Reveal()), MinPassword)
		}
		r, err := age.NewScryptRecipient(k.Password.Reveal())
		if err != nil {
			return nil, err
		}
		r.SetWorkFactor(work)
		return []age.Recipient{r}, nil
	}
	if !k.Password.Empty() {
		return nil, invalid("a backup is encrypted with a password or to public keys, not with both")
	}
	var all []age.Recipient
	for _, text := range k.Recipients {
		r, err := age.ParseX25519Recipient(strings.TrimSpace(text))
		if err != nil {
			return nil, invalid("%.80q is no public key; expected one that begins with age1", text)
		}
		all = append(all, r)
	}
	return all, nil
}

func (k Key) identities() ([]age.Identity, error) {
	if !k.Identity.Empty() {
		all, err := age.ParseIdentities(strings.NewReader(k.Identity.Reveal()))
		if err != nil {
			return nil, invalid("the identity is none; expected a line that begins with AGE-SECRET-KEY-1") // the error would quote it
		}
		return all, nil
	}
	if k.Password.Empty() {
		return nil, invalid("there is no password to read the backup with")
	}
	i, err := age.NewScryptIdentity(k.Password.Reveal())
	if err != nil {
		return nil, err
	}
	i.SetMaxWorkFactor(maxScryptWork)
	return []age.Identity{i}, nil
}
