package administration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/permit"
	"gatehouse/tool"
)

// Tokens administers the tokens of a host. It is safe for concurrent use.
type Tokens struct {
	Service      *identity.Service
	CheckContext func(name string) error // nil accepts every name
}

// TokenExpiry is how long a token is valid by default.
const TokenExpiry = "90d"

// TokenList is the tokens of one or all users.
type TokenList struct {
	Tokens []identity.Token `json:"tokens" doc:"oldest first"`
}

// List lists the tokens of a user, or of all users for "".
func (t Tokens) List(ctx context.Context, user string) (out TokenList, err error) {
	if t.Service == nil {
		return out, errAbsent
	}
	out.Tokens, err = t.Service.Tokens(ctx, user)
	return out, err
}

// NewToken is a token to create.
type NewToken struct {
	User       string   `json:"user,omitempty" doc:"whom it identifies; default: the only user"`
	Name       string   `json:"name,omitempty" doc:"to recognize it by" max:"64"`
	Context    string   `json:"context,omitempty" doc:"the context that it is bound to" max:"64"`
	Scopes     []string `json:"scopes,omitempty" doc:"what it permits: read, *, metrics, or tools:, resources: and prompts: with a pattern; default: all that its user may do"`
	Unattended bool     `json:"unattended,omitempty" doc:"for a program that no person is beside: its changes are staged for a review, see stage.unattended"`
	Expires    string   `json:"expires,omitempty" doc:"12h, 30d, 8w or never" default:"90d"`
}

// MadeToken is a new token with its secret.
type MadeToken struct {
	Secret string         `json:"token" doc:"the secret, which is not shown again"`
	Token  identity.Token `json:"about"`
}

// Create creates a token.
func (t Tokens) Create(ctx context.Context, in NewToken, now time.Time) (out MadeToken, err error) {
	if t.Service == nil {
		return out, errAbsent
	}
	made := identity.Token{User: in.User, Name: in.Name, Context: in.Context, Scopes: in.Scopes, Unattended: in.Unattended}
	if made.Until, err = ParseExpiry(cmp.Or(in.Expires, TokenExpiry), now); err != nil {
		return out, &Invalid{fmt.Errorf("expires: %w", err)}
	}
	for _, scope := range in.Scopes {
		if err := permit.CheckScope(scope); err != nil {
			return out, &Invalid{fmt.Errorf("scopes: %w", err)}
		}
	}
	if in.Context != "" && t.CheckContext != nil {
		if err := t.CheckContext(in.Context); err != nil {
			return out, &Invalid{fmt.Errorf("context: %w", err)}
		}
	}
	if made.User == "" {
		if made.User, err = t.onlyUser(ctx); err != nil {
			return out, err
		}
	}
	out.Secret, out.Token, err = t.Service.CreateToken(ctx, made)
	if err != nil {
		err = fmt.Errorf("token for user %s: %w", made.User, err)
	}
	return out, err
}

// onlyUser returns the name of the only user.
func (t Tokens) onlyUser(ctx context.Context) (string, error) {
	users, err := t.Service.Users(ctx)
	switch {
	case err != nil:
		return "", err
	case len(users) == 0:
		return "", fmt.Errorf("%w the token could belong to; add one with gatehouse user add NAME", identity.ErrNoUser)
	case len(users) > 1:
		return "", &Invalid{fmt.Errorf("user: there are %d users: name the token's user", len(users))}
	}
	return users[0].Name, nil
}

// Revoke removes a token, and ends what was opened with it.
func (t Tokens) Revoke(ctx context.Context, id string) error {
	if t.Service == nil {
		return errAbsent
	}
	if err := t.Service.RevokeToken(ctx, id); err != nil {
		return fmt.Errorf("token %s: %w", id, err)
	}
	return nil
}

// ParseExpiry parses a span such as 12h, 30d or 8w and returns the time when it ends; the zero time means never.
func ParseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "never" {
		return time.Time{}, nil
	}
	d, err := time.ParseDuration(text)
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if count, ok := strings.CutSuffix(text, unit); ok {
			var n int
			if n, err = strconv.Atoi(count); err == nil && n > 36500 {
				err = errors.New("too long")
			}
			d = time.Duration(n) * length
		}
	}
	if err != nil || d < time.Second {
		return time.Time{}, fmt.Errorf("%q is not a duration; expected one such as 12h, 30d, 8w or never", text)
	}
	return now.Add(d), nil
}

type tokensIn struct {
	User string `json:"user,omitempty" doc:"only those of this user"`
}

type tokenIn struct {
	ID string `json:"id" doc:"the id from token_list, such as t_abcdef" min:"1"`
}

type revoked struct {
	Revoked string `json:"revoked"`
}

func tokenTools(c Config) []tool.Tool {
	t := Tokens{c.Users, c.CheckContext}
	return []tool.Tool{
		operation(c, "see the tokens of users", tool.Def{
			Name: "token_list", Title: "List tokens", Effects: tool.Reads,
			Description: "Lists the tokens of this host's users, without their secrets.",
		}, func(ctx context.Context, _ *tool.Call, in tokensIn) (TokenList, error) { return t.List(ctx, in.User) }),
		operation(c, "create tokens", tool.Def{
			Name: "token_create", Title: "Create a token", Effects: tool.Writes,
			Description: "Creates a token for a program that acts for a user. The secret is returned once.",
		}, func(ctx context.Context, _ *tool.Call, in NewToken) (MadeToken, error) {
			return t.Create(ctx, in, time.Now())
		}),
		operation(c, "revoke tokens", tool.Def{
			Name: "token_revoke", Title: "Revoke a token", Effects: tool.Writes | tool.Destroys,
			Description: "Revokes a token, and ends what was opened with it.",
		}, func(ctx context.Context, _ *tool.Call, in tokenIn) (revoked, error) {
			return revoked{in.ID}, t.Revoke(ctx, in.ID)
		}),
	}
}
