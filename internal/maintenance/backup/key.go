package backup

import (
	"strings"

	"filippo.io/age"

	"gatehouse/internal/access/secret"
)

const (
	// scryptWork makes one guess of a password cost 64 MiB and at least 0.1 s.
	scryptWork    = 16
	maxScryptWork = 20 // accepted in a backup: 1 GiB
	// MinPassword is the smallest number of bytes of a password.
	MinPassword = 12
)

// Key encrypts a backup with a password or to age public keys, or decrypts it.
type Key struct {
	Password   secret.Text
	Recipients []string    // age1..., instead of a password
	Identity   secret.Text // AGE-SECRET-KEY-1..., to decrypt
}

// CheckCreate returns an error if Create would refuse the key.
func (k Key) CheckCreate() error {
	_, err := k.recipients(1)
	return err
}

func (k Key) recipients(work int) ([]age.Recipient, error) {
	if len(k.Recipients) == 0 {
		if len(k.Password.Reveal()) < MinPassword {
			return nil, invalid(
				"the password has %d bytes; expected at least %d",
				len(k.Password.Reveal()),
				MinPassword,
			)
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
			return nil, invalid("%.80q is not a public key; expected one that begins with age1", text)
		}
		all = append(all, r)
	}
	return all, nil
}

func (k Key) identities() ([]age.Identity, error) {
	if !k.Identity.Empty() {
		all, err := age.ParseIdentities(strings.NewReader(k.Identity.Reveal()))
		if err != nil {
			return nil, invalid(
				"the identity is not valid; expected a line that begins with AGE-SECRET-KEY-1",
			) // err would quote the key
		}
		return all, nil
	}
	if k.Password.Empty() {
		return nil, invalid("no password is given to read the backup with")
	}
	i, err := age.NewScryptIdentity(k.Password.Reveal())
	if err != nil {
		return nil, err
	}
	i.SetMaxWorkFactor(maxScryptWork)
	return []age.Identity{i}, nil
}
