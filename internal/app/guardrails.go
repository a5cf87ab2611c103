package app

import (
	"errors"

	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/access/secret"
)

// guardrails returns what judges the calls of this host; nil if the settings name nothing.
func (a *App) guardrails() (*guardrail.Guards, error) {
	fill := a.fillSecrets()
	return guardrail.New(guardrail.Options{
		Settings: a.cfg.Guards, Log: a.log,
		Secret: func(name string) (secret.Text, error) {
			if fill == nil {
				return secret.Text{}, errors.New("this host stores no secrets")
			}
			all, err := fill(map[string]string{name: "${secret:" + name + "}"})
			return all[name], err
		},
	})
}
