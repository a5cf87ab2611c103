package app

import (
	"context"

	"gatehouse/internal/modules/ml"
	"gatehouse/internal/telemetry/metrics"
)

// modelDeps returns the configuration of the module ml, whose probes are recorded where the module metrics is served.
func (a *App) modelDeps() (ml.Config, error) {
	c := ml.Config{Settings: a.cfg.Modules.ML, Rules: a.rules, Fill: a.fillSecrets()}
	c.Record = func(ctx context.Context, scope string, events ...metrics.Event) error {
		store := a.measurements.Load()
		if store == nil {
			return nil
		}
		_, err := store.Record(ctx, scope, events...)
		return err
	}
	return c, nil
}
