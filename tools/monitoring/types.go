// Package monitoring names the types whose CustomResourceDefinitions build.sh generates.
package monitoring

import _ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
